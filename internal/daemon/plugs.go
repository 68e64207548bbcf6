// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroup"
	"berth/internal/config"
	"berth/internal/image"
	"berth/internal/network"
	"berth/internal/pod"
	"berth/internal/spec"
	"berth/internal/version"
)

// cgroups plugs package cgroup into the controller.
type cgroups struct {
	ooms *cgroup.OOMWatch // nil where the kernel did not give one
}

var errNoOOMWatch = fmt.Errorf("berth could not make a watch when it started: %w", errdefs.ErrUnavailable)

func (c cgroups) WatchOOM(id, dir string) (all bool, err error) {
	if c.ooms == nil {
		return false, errNoOOMWatch
	}
	return c.ooms.Watch(id, dir)
}

func (c cgroups) ForgetOOM(id string) {
	if c.ooms != nil {
		c.ooms.Forget(id)
	}
}

func (cgroups) LimitHits(dir string) ([]uint64, error) { return cgroup.LimitHits(dir) }

func (cgroups) Of(pid uint32) (string, error)                 { return cgroup.Of(pid) }
func (cgroups) Dir(path string) string                        { return cgroup.Dir(path) }
func (cgroups) OOMKills(dir string) (uint64, error)           { return cgroup.OOMKills(dir) }
func (cgroups) OOMKillsBelow(dir string) (uint64, error)      { return cgroup.OOMKillsBelow(dir) }
func (cgroups) KillAll(ctx context.Context, dir string) error { return cgroup.KillAll(ctx, dir) }
func (cgroups) RemoveAll(ctx context.Context, path string) (bool, error) {
	return cgroup.RemoveAll(ctx, path)
}

// pluginGroups plugs the groups of package cgroup into the network.
type pluginGroups struct{ *cgroup.Groups }

func (g pluginGroups) New(id string) (network.Group, error) { return g.Groups.New(id) }

// images plugs package image into the controller.
type images struct{ s *image.Service }

func (i images) Resolve(ref string) (pod.Image, error) {
	img, err := i.s.Resolve(ref)
	if err != nil {
		return pod.Image{}, err
	}
	return pod.Image{
		ID:          img.ID,
		Ref:         img.Ref(),
		ChainID:     img.ChainID,
		Snapshotter: i.s.Snapshotter(),
		Config:      img.Config,
		Checkpoint:  img.Checkpoint,
	}, nil
}

// Pull fetches an image with the credentials that are configured.
func (i images) Pull(ctx context.Context, ref string) error {
	_, err := i.s.Pull(ctx, ref, nil)
	return err
}

func (i images) Files(ctx context.Context, img pod.Image) (passwd, group []byte, err error) {
	return i.s.Files(ctx, img.ChainID)
}

// Name is what the status of a container shows as its image.
func (i images) Name(id string) string { return i.s.Name(id) }

// Unpack makes the snapshots of an image that is there without them.
func (i images) Unpack(ctx context.Context, img pod.Image) error {
	return i.s.Unpack(ctx, img.ID, img.Snapshotter)
}

func (i images) CopyOut(ctx context.Context, img pod.Image, dirs map[string]string) error {
	return i.s.CopyOut(ctx, img.ChainID, dirs)
}

// layersMountpoint is the file system of writable layers, as ImageFsInfo names it.
func (d *daemon) layersMountpoint() string {
	return d.images.Mountpoint()
}

// health answers CRI's Status.
type health struct{ d *daemon }

// warnings are what a person should know of this node.
func (d *daemon) warnings() []string {
	all := d.probe.Warnings()
	if text := d.apparmor.warning(); text != "" {
		all = append(all, text)
	}
	return all
}

func (h health) Runtime() error { return h.d.away() }
func (h health) Network() error { return h.d.network.Status() }

func (h health) Info() map[string]any {
	name, source, conf := h.d.network.Active()
	mode := "embedded"
	if !h.d.embeds() {
		mode = h.d.cfg.Containerd.Address
	}
	return map[string]any{
		"podCIDR":            h.d.podCIDR.Load(),
		"config":             h.d.settings.Load(),
		"containerd":         mode,
		"version":            version.String(),
		"golang":             runtime.Version(),
		"cni":                map[string]any{"name": name, "source": source, "conf": conf},
		"kernelWitnessExact": h.d.kernel.Exact(),
		"warnings":           h.d.warnings(),
	}
}

func (h health) Handlers() []*runtimeapi.RuntimeHandler {
	var out []*runtimeapi.RuntimeHandler
	for _, n := range append([]string{""}, slices.Sorted(maps.Keys(h.d.handlers))...) { // "" is the default one
		features := h.d.probe.Features(cmp.Or(n, h.d.cfg.DefaultRuntime))
		out = append(out, &runtimeapi.RuntimeHandler{Name: n, Features: features})
	}
	return out
}

// SetPodCIDR notes the node's pod CIDR. It is logged once for each value: who expects pods to get
// their addresses from it finds out why they do not.
func (h health) SetPodCIDR(cidrs string) {
	if old := h.d.podCIDR.Swap(&cidrs); old == nil || *old != cidrs {
		h.d.log.Info("the kubelet has sent the node's pod CIDR; the CNI configuration decides on the addresses of pods", "podCIDR", cidrs)
	}
}

func (h health) SystemdCgroup() bool { return h.d.handlers[h.d.cfg.DefaultRuntime].SystemdCgroup }

// admin serves berth.v1.Admin.
type admin struct{ d *daemon }

func (a admin) Import(ctx context.Context, path, ref string) ([]string, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("import %q: it is not an absolute path: %w", path, errdefs.ErrInvalidArgument)
	}
	if err := a.d.reach(ctx); err != nil {
		return nil, fmt.Errorf("import %s: %w", path, err)
	}
	return a.d.images.Import(ctx, path, ref)
}

func (a admin) PullProgress(ctx context.Context, ref string) (any, error) {
	return a.d.images.Progress(ctx, ref)
}

func (a admin) ImportProgress(_ context.Context, path string) (any, error) {
	return a.d.images.ImportProgress(path), nil
}

func (a admin) Timeline(_ context.Context, id string) (any, error) {
	full, entries, err := a.d.core.Timeline.Of(id)
	if err != nil {
		return nil, err
	}
	out := map[string]any{"id": full, "entries": entries}
	for _, l := range a.d.core.Pods.Lanes() {
		if l.ID == full {
			out["lane"] = l
		}
	}
	return out, nil
}

func (a admin) Lanes(context.Context) (any, error) { return a.d.core.Pods.Lanes(), nil }

// makeHandlers completes the configured runtimes with what berth brings along.
func (d *daemon) makeHandlers() (map[string]pod.Handler, error) {
	out := map[string]pod.Handler{}
	for name, r := range d.cfg.Runtimes {
		h := pod.Handler{
			Name:                         name,
			Type:                         r.Type,
			Binary:                       r.Binary,
			Root:                         r.Root,
			SystemdCgroup:                r.SystemdCgroup,
			Sandboxer:                    r.Sandboxer,
			HostProcess:                  r.HostProcess,
			Options:                      optionsOf(r),
			ConfigPath:                   r.ConfigPath,
			ConfigBody:                   r.ConfigBody,
			SandboxImage:                 r.SandboxImage,
			Snapshotter:                  r.Snapshotter,
			PrivilegedWithoutHostDevices: r.PrivilegedWithoutHostDevices,
			PodAnnotations:               r.PodAnnotations,
			ContainerAnnotations:         r.ContainerAnnotations,
		}
		if r.BaseSpec != "" {
			base, err := spec.LoadBase(r.BaseSpec)
			if err != nil {
				return nil, fmt.Errorf("runtimes.%s.base_spec: %w", name, err)
			}
			h.BaseSpec = base
		}
		if d.embeds() && r.IsRunc() {
			if h.Binary == "" {
				h.Binary = filepath.Join(d.libexec, "runc")
			}
			if h.Root == "" {
				h.Root = filepath.Join(d.cfg.State, "runc")
			}
		}
		if logger := filepath.Join(d.libexec, "berth-logger"); r.IsRunc() {
			if _, err := os.Stat(logger); err == nil {
				h.Logger = logger
			} else {
				d.log.Warn("berth-logger is not installed: output that containers write while berth is away can be lost", "err", err)
			}
		}
		out[name] = h
	}
	return out, nil
}

// handlerNetworks are the directories of CNI configurations of the handlers that have one.
func handlerNetworks(runtimes map[string]config.Runtime) map[string]string {
	dirs := map[string]string{}
	for name, r := range runtimes {
		if r.CNIConfDir != "" {
			dirs[name] = r.CNIConfDir
		}
	}
	return dirs
}

// optionsOf is which options the shim of a handler gets.
func optionsOf(r config.Runtime) pod.Options {
	switch {
	case r.Options != "":
		return pod.Options(r.Options)
	case r.IsRunc():
		return pod.OptionsRunc
	case r.ConfigPath != "" || r.ConfigBody != "":
		return pod.OptionsGeneric
	default:
		return pod.OptionsNone
	}
}

// handlerSnapshotters are the snapshotters that handlers have of their own.
func handlerSnapshotters(runtimes map[string]config.Runtime) []string {
	var names []string
	for _, r := range runtimes {
		if r.Snapshotter != "" && !slices.Contains(names, r.Snapshotter) {
			names = append(names, r.Snapshotter)
		}
	}
	return names
}

// sandboxImages are the images that the pause processes of handlers come from.
func sandboxImages(runtimes map[string]config.Runtime) []string {
	var names []string
	for _, r := range runtimes {
		if r.SandboxImage != "" {
			names = append(names, r.SandboxImage)
		}
	}
	return names
}

// credentials are those of registries by host.
func credentials(auth map[string]config.Auth) map[string]image.Credentials {
	out := map[string]image.Credentials{}
	for host, a := range auth {
		out[host] = image.Credentials{Username: a.Username, Password: string(a.Password)}
	}
	return out
}
