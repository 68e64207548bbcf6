// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
)

// remove removes a pod of this drill with its container.
func (d *drill) remove(ctx context.Context, pod string) error {
	_, err := d.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
	return err
}

// drills returns the pods of drills: of this one if name says so, "" for all.
func (d *drill) drills(ctx context.Context, name string) ([]*runtimeapi.PodSandbox, error) {
	list, err := d.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.GetItems(), func(p *runtimeapi.PodSandbox) bool {
		of := p.GetLabels()[label]
		return p.GetMetadata().GetNamespace() != namespace || of == "" || name != "" && of != name
	}), nil
}

// sweep removes the pods of a drill that was killed. One that may still go on is left alone.
func (d *drill) sweep(ctx context.Context) {
	pods, err := d.drills(ctx, "")
	if err != nil {
		return // the first step says it
	}
	for _, p := range pods {
		if time.Since(time.Unix(0, p.GetCreatedAt())) > 2*(breaking+cleaning) {
			_ = d.remove(ctx, p.GetId()) // what cannot be removed disturbs nobody
		}
	}
}

// clean removes everything that the drill has made, and returns what is left, or could not be looked
// for, within the time of ctx.
func (d *drill) clean(ctx context.Context) (left []string) {
	say := func(format string, args ...any) { left = append(left, fmt.Sprintf(format, args...)) }
	pods, err := d.drills(ctx, d.name)
	if err != nil {
		say("it is not known whether pods of the namespace %s are left: %v; berth pods lists them", namespace, cri.Explain(err))
	}
	var wg sync.WaitGroup
	for _, p := range pods {
		wg.Go(func() { _ = d.remove(ctx, p.GetId()) })
	}
	wg.Wait()
	if len(pods) > 0 {
		if pods, err = d.drills(ctx, d.name); err != nil {
			say("it is not known whether pods of the namespace %s are left: %v; berth pods lists them", namespace, cri.Explain(err))
		}
	}
	for _, p := range pods {
		say("pod %s: berth rm -f %s", p.GetMetadata().GetName(), p.GetId())
	}
	d.cleanImage(ctx, say)
	for _, at := range d.mounted {
		if _, err := program(ctx, "umount", at); err != nil {
			say("a small file system: umount %s: %v", at, err)
		}
	}
	if d.dir != "" {
		// A mount that is still there keeps its directory.
		if err := os.RemoveAll(d.dir); err != nil {
			say("files: rm -r %s: %v", d.dir, err)
		}
	}
	d.cleanCgroup(ctx, say)
	return left
}

// cleanImage removes the image if the drill has imported it.
func (d *drill) cleanImage(ctx context.Context, say func(string, ...any)) {
	if !d.ours {
		return
	}
	spec := &runtimeapi.ImageSpec{Image: d.image}
	_, err := d.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: spec})
	if err == nil {
		var st *runtimeapi.ImageStatusResponse
		if st, err = d.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec}); err == nil && st.GetImage() == nil {
			return
		}
	}
	say("the image %s: berth images rm %s (%v)", d.image, d.image, cri.Explain(err))
}

// cleanCgroup removes the cgroup above the drill's pods, which berth leaves to whoever named it.
func (d *drill) cleanCgroup(ctx context.Context, say func(string, ...any)) {
	if d.parent == "" {
		return
	}
	if d.systemd {
		_, _ = program(ctx, "systemctl", "stop", d.parent) // it is looked for below
	}
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for {
		groups, err := d.cgroups()
		if err != nil {
			say("it is not known whether cgroups are left: %v", err)
			return
		}
		if len(groups) == 0 {
			return
		}
		for _, g := range groups {
			_ = unix.Rmdir(g) // a process of it may take a moment to end
		}
		select {
		case <-ctx.Done():
			for _, g := range groups {
				say("a cgroup: find %s -depth -type d -delete", g)
			}
			return
		case <-t.C:
		}
	}
}

// cgroups returns the cgroups above the drill's pods, one for each hierarchy. berth may itself be in
// a cgroup, and the drill's below that.
func (d *drill) cgroups() ([]string, error) {
	var found []string
	name := filepath.Base(d.parent)
	for _, pattern := range []string{"/sys/fs/cgroup/" + name, "/sys/fs/cgroup/*/" + name, "/sys/fs/cgroup/*/*/" + name} {
		groups, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		found = append(found, groups...)
	}
	return found, nil
}
