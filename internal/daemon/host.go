// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/cap"

	"berth/internal/heart/pod"
	"berth/internal/host/apparmor"
	"berth/internal/host/cdi"
	"berth/internal/host/cgroup"
	"berth/internal/host/network"
	"berth/internal/host/pidfd"
	"berth/internal/host/pins"
	"berth/internal/host/selinux"
	"berth/internal/host/spec"
	"berth/internal/images/unpack"
	"berth/internal/serve/join"
)

// host is what this host, and berth's installation on it, have for pods.
type host struct {
	base
	spec.Host
	kernel   *pidfd.Watcher
	ooms     *cgroup.OOMWatch // nil where the kernel has none left
	netns    *pins.Networks
	network  *network.Network
	devices  cdi.Registry
	handlers map[string]pod.Handler
	apparmor *apparmor.AppArmor // nil where AppArmor is off
	labels   *selinux.Labels    // nil where SELinux is off
	pause    string             // the root file system of pause processes
}

// openHost opens what the kernel notifies of, what connects pods, and what else this host has, and
// installs the pause program. s has what an earlier berth has left of processes that are watched.
func openHost(b base, s *sockets, owner string) (h host, err error) {
	h.base = b
	if h.kernel, err = pidfd.New(s.kept, s.inherited); err != nil {
		return h, err
	}
	if h.ooms, err = cgroup.NewOOMWatch(); err != nil {
		b.log.Warn("the kernel cannot notify of OOM kills: they are counted when a container ends", "err", err)
	} else {
		b.undo.add(h.ooms.Close)
	}
	if h.netns, err = pins.NewNetworks(b.cfg.Network.NetNSDir, owner); err != nil {
		return h, err
	}
	if h.network, err = openNetwork(b, owner); err != nil {
		return h, err
	}
	caps, err := cap.Current()
	if err != nil {
		return h, fmt.Errorf("look at own capabilities: %w", err)
	}
	if h.handlers, err = b.makeHandlers(); err != nil {
		return h, err
	}
	if h.Host, err = spec.ReadHost(caps); err != nil {
		return h, err
	}
	h.RequireHugetlb = b.cfg.Pod.RequireHugetlb
	if h.Classes, err = openClasses(b.cfg.Pod); err != nil {
		return h, err
	}
	h.UnknownSyscalls = func(names []string) ([]string, error) {
		return join.UnknownSyscalls(context.Background(), b.libexec, names)
	}
	h.ProveSeccomp = proved(b.libexec)
	if h.apparmor = apparmor.Open(b.log.Logger); h.apparmor != nil {
		h.AppArmorDefault, h.LoadAppArmor = apparmor.Profile, h.apparmor.Ensure
	}
	if h.labels, err = selinux.Open(); err != nil { // what needs the labels fails, and nothing else
		b.log.Warn("cannot read the labels of this host's SELinux policy", "err", err)
	}
	if h.labels != nil { // a nil *selinux.Labels would not be a nil interface
		h.SELinux = h.labels
	}
	if err := unpack.Fence(); err != nil && b.embeds() {
		b.log.Warn("the process that unpacks a layer can open every file of the host", "err", err)
	}
	if h.MinOOMScoreAdj > -1000 {
		b.log.Warn("oom_score_adj of pods cannot be lowered: berth lacks CAP_SYS_RESOURCE", "least", h.MinOOMScoreAdj)
	}
	h.devices = cdi.Registry(b.cfg.CDI.SpecDirs)
	if h.pause, err = installPause(b.libexec, filepath.Join(b.cfg.State, "pause")); err != nil {
		return h, err
	}
	h.publish()
	return h, nil
}

// snapshotters returns the snapshotter that each handler has of its own, or "".
func (h host) snapshotters() map[string]string {
	out := map[string]string{}
	for name, handler := range h.handlers {
		out[name] = handler.Snapshotter
	}
	return out
}

// publish gives the pause program, and the layers of images below the embedded containerd's
// directory, the SELinux label of files that every container may read. The root file system of a
// container has a label of its own, but of a file that a program has mapped the kernel checks the
// layer's. Layers that were there without the label cost the first start some time.
func (h host) publish() {
	if h.labels == nil {
		return
	}
	dirs, err := filepath.Glob(filepath.Join(h.embedConfig().Root, "io.containerd.snapshotter.v1.*", "snapshots"))
	for _, dir := range append(dirs, h.pause) {
		err = errors.Join(err, h.labels.Publish(dir))
	}
	if err != nil {
		h.log.Warn("cannot label what every container reads: SELinux may keep containers from starting", "err", err)
	}
}
