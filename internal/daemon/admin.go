// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/config"
	"berth/internal/base/event"
	"berth/internal/base/lane"
	"berth/internal/base/version"
	"berth/internal/history/bundle"
	"berth/internal/history/recorder"
	"berth/internal/history/why"
	"berth/internal/images/image"
	"berth/internal/images/imagestore"
	"berth/internal/serve/cri"
)

// admin serves berth.v1.Admin.
type admin struct {
	core   *Core
	images *image.Service
	disk   *disk
	stored *imagestore.Store
	cfg    *config.Config
	exact  bool                            // the kernel reports exit codes
	reach  func(ctx context.Context) error // waits a little for containerd
}

// Import implements cri.AdminServer.
func (a admin) Import(ctx context.Context, path, ref string) (image.Imported, error) {
	if !filepath.IsAbs(path) {
		return image.Imported{}, fmt.Errorf("import %q: it is not an absolute path: %w", path, errdefs.ErrInvalidArgument)
	}
	if err := a.reach(ctx); err != nil {
		return image.Imported{}, fmt.Errorf("import %s: %w", path, err)
	}
	return a.images.Import(ctx, path, ref)
}

// PullProgress implements cri.AdminServer.
func (a admin) PullProgress(ctx context.Context, ref string) (any, error) {
	return a.images.Progress(ctx, ref)
}

// ImportProgress implements cri.AdminServer.
func (a admin) ImportProgress(_ context.Context, path string) (any, error) {
	return a.images.ImportProgress(path), nil
}

// VerifyImage implements cri.AdminServer.
func (a admin) VerifyImage(ctx context.Context, ref string, repair bool) (any, error) {
	if err := a.reach(ctx); err != nil {
		return nil, fmt.Errorf("verify image %s: %w", ref, err)
	}
	img, err := a.images.Resolve(ref)
	if err != nil {
		return nil, err
	}
	return a.stored.Verify(ctx, img.Name, repair)
}

// Transfers implements cri.AdminServer.
func (a admin) Transfers(ctx context.Context) (any, error) {
	list := a.images.Transfers(ctx)
	if list == nil {
		list = []image.Transfer{}
	}
	return list, nil
}

// Images implements cri.AdminServer.
func (a admin) Images(ctx context.Context) (any, error) {
	if err := a.reach(ctx); err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	return a.images.Details(ctx, a.users)
}

// PruneImages implements cri.AdminServer.
func (a admin) PruneImages(ctx context.Context, dryRun bool, olderThan time.Duration) (any, error) {
	if err := a.reach(ctx); err != nil {
		return nil, fmt.Errorf("prune images: %w", err)
	}
	return a.images.Prune(ctx, image.PruneOptions{
		DryRun:    dryRun,
		OlderThan: olderThan,
		Used:      a.users,
	})
}

// Disk implements cri.AdminServer.
func (a admin) Disk(ctx context.Context) (any, error) {
	if err := a.reach(ctx); err != nil {
		return nil, fmt.Errorf("measure the disk: %w", err)
	}
	shares, err := a.images.Shares(ctx, a.users)
	if err != nil {
		return nil, err
	}
	d := cri.Disk{Path: a.images.Mountpoint(), Shares: append(shares, a.disk.shares(ctx, a.logs())...)}
	if d.Path != "" {
		d.Total, d.Free = a.disk.space(ctx, d.Path)
	}
	return d, nil
}

// users names the containers that use each image, by the ID of the image: as
// NAMESPACE/POD/CONTAINER, in any state. A container uses the images that it mounts, too.
func (a admin) users() map[string][]string {
	pods := map[string]string{}
	for _, p := range a.core.Pods.ListPodSandbox(&runtimeapi.PodSandboxFilter{}) {
		pods[p.GetId()] = p.GetMetadata().GetNamespace() + "/" + p.GetMetadata().GetName()
	}
	by := map[string][]string{}
	add := func(id, who string) {
		if id != "" && !slices.Contains(by[id], who) {
			by[id] = append(by[id], who)
		}
	}
	for _, c := range a.core.Pods.ListContainers(&runtimeapi.ContainerFilter{}) {
		who := pods[c.GetPodSandboxId()] + "/" + c.GetMetadata().GetName()
		add(c.GetImageId(), who)
		st, err := a.core.Pods.ContainerStatus(context.Background(), c.GetId(), false) // from memory
		if err != nil {
			continue // removed meanwhile
		}
		for _, m := range st.GetStatus().GetMounts() {
			if ref := cmp.Or(m.GetImage().GetImageRef(), m.GetImage().GetImage()); ref != "" {
				if i, err := a.images.Resolve(ref); err == nil {
					add(i.ID, who)
				}
			}
		}
	}
	return by
}

// logs returns the paths of the logs of all containers.
func (a admin) logs() (paths []string) {
	for _, c := range a.core.Pods.ListContainers(&runtimeapi.ContainerFilter{}) {
		st, err := a.core.Pods.ContainerStatus(context.Background(), c.GetId(), false)
		if err == nil && st.GetStatus().GetLogPath() != "" {
			paths = append(paths, st.GetStatus().GetLogPath())
		}
	}
	return paths
}

// Timeline implements cri.AdminServer.
func (a admin) Timeline(ctx context.Context, q recorder.Query) (any, error) {
	told, err := a.core.Recorder.Find(ctx, q)
	if err != nil {
		return nil, err
	}
	return cri.History{Answer: told, Lane: a.laneOf(told.ID)}, nil
}

// Records implements cri.AdminServer.
func (a admin) Records(ctx context.Context, after uint64, since time.Time) (recorder.Batch, error) {
	return a.core.Recorder.Batch(ctx, after, since), nil
}

// Bundle implements cri.AdminServer. It asks nobody: everything is in memory.
func (a admin) Bundle(ctx context.Context) (bundle.Node, error) {
	n := bundle.Node{
		Version:       version.String(),
		Exact:         a.exact,
		Configuration: bundle.Settings(*a.cfg),
	}
	lanes := map[string]lane.Lane{}
	for _, l := range a.core.Pods.Lanes() {
		lanes[l.ID] = l
	}
	record := func(id, state string, created int64) (bundle.Record, bool) {
		t, err := a.core.Pods.Target(id)
		if err != nil {
			return bundle.Record{}, false // removed meanwhile
		}
		r := bundle.Record{
			ID:      id,
			Of:      namesIn(t.PodID, t.PodConfig, t.Config),
			Handler: t.Handler.Name,
			Pinned:  t.Pinned,
			Host:    t.Handler.HostProcess,
			Systemd: t.Handler.SystemdCgroup,
			Image:   t.Config.GetImage().GetImage(),
			State:   state,
			Created: instant(created),
		}
		if l, ok := lanes[id]; ok {
			r.Waits, r.Tries = fmt.Sprint(l.Head), l.Tries
		}
		return r, true
	}
	for _, p := range a.core.Pods.ListPodSandbox(&runtimeapi.PodSandboxFilter{}) {
		if r, ok := record(p.GetId(), strings.TrimPrefix(p.GetState().String(), "SANDBOX_"), p.GetCreatedAt()); ok {
			n.Records = append(n.Records, r)
		}
	}
	for _, c := range a.core.Pods.ListContainers(&runtimeapi.ContainerFilter{}) {
		r, ok := record(c.GetId(), strings.TrimPrefix(c.GetState().String(), "CONTAINER_"), c.GetCreatedAt())
		if !ok {
			continue
		}
		if st, err := a.core.Pods.ContainerStatus(ctx, c.GetId(), false); err == nil {
			r.Started, r.Ended = instant(st.GetStatus().GetStartedAt()), instant(st.GetStatus().GetFinishedAt())
			r.Code, r.Reason = st.GetStatus().GetExitCode(), st.GetStatus().GetReason()
		}
		n.Records = append(n.Records, r)
	}
	return n, nil
}

// instant converts an instant of CRI's, which is zero for none.
func instant(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

// laneOf returns the lane of a sandbox or container, nil if nothing is left to do.
func (a admin) laneOf(id string) *lane.Lane {
	for _, l := range a.core.Pods.Lanes() {
		if l.ID == id {
			return &l
		}
	}
	return nil
}

// Why implements cri.AdminServer.
func (a admin) Why(ctx context.Context, of string) (any, error) {
	found, err := a.core.Recorder.Find(ctx, recorder.Query{Of: of, Around: true})
	if err != nil {
		return nil, err
	}
	r := cri.Reason{Answer: why.Explain(found, a.core.Pods.Ended(), time.Now())}
	if len(r.Wrote) == 0 {
		r.Wrote = a.core.Recorder.See(ctx, r.ID).Log
	}
	r.Lane = a.laneOf(r.ID)
	return r, nil
}

// Ended implements cri.AdminServer.
func (a admin) Ended(context.Context) (map[string]event.Exit, error) {
	return a.core.Pods.Ended(), nil
}

// Lanes implements cri.AdminServer.
func (a admin) Lanes(context.Context) (any, error) { return a.core.Pods.Lanes(), nil }
