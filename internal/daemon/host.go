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
	"berth/internal/host/selinux"
	"berth/internal/host/spec"
	"berth/internal/images/unpack"
	"berth/internal/serve/join"
)

// host is what this host, and berth's installation on it, have for pods.
type host struct {
	spec.Host
	handlers map[string]pod.Handler
	apparmor *apparmor.AppArmor // nil where AppArmor is off
	labels   *selinux.Labels    // nil where SELinux is off
	pause    string             // the root file system of pause processes
}

// openHost finds out what this host has, and installs the pause program.
func (d *daemon) openHost() error {
	h := &d.host
	caps, err := cap.Current()
	if err != nil {
		return fmt.Errorf("look at own capabilities: %w", err)
	}
	if h.handlers, err = d.makeHandlers(); err != nil {
		return err
	}
	if h.Host, err = spec.ReadHost(caps); err != nil {
		return err
	}
	h.RequireHugetlb = d.cfg.Pod.RequireHugetlb
	h.UnknownSyscalls = func(names []string) ([]string, error) {
		return join.UnknownSyscalls(context.Background(), d.libexec, names)
	}
	if h.apparmor = apparmor.Open(d.log.Logger); h.apparmor != nil {
		h.AppArmorDefault, h.LoadAppArmor = apparmor.Profile, h.apparmor.Ensure
	}
	if h.labels, err = selinux.Open(); err != nil { // what needs the labels fails, and nothing else
		d.log.Warn("cannot read the labels of this host's SELinux policy", "err", err)
	}
	if h.labels != nil { // a nil *selinux.Labels would not be a nil interface
		h.SELinux = h.labels
	}
	if err := unpack.Fence(); err != nil && d.embeds() {
		d.log.Warn("the process that unpacks a layer can open every file of the host", "err", err)
	}
	if h.MinOOMScoreAdj > -1000 {
		d.log.Warn("oom_score_adj of pods cannot be lowered: berth lacks CAP_SYS_RESOURCE", "least", h.MinOOMScoreAdj)
	}
	if h.pause, err = installPause(d.libexec, filepath.Join(d.cfg.State, "pause")); err != nil {
		return err
	}
	d.publish()
	return nil
}

// publish gives the pause program, and the layers of images below the embedded containerd's
// directory, the SELinux label of files that every container may read. The root file system of a
// container has a label of its own, but of a file that a program has mapped the kernel checks the
// layer's. Layers that were there without the label cost the first start some time.
func (d *daemon) publish() {
	if d.host.labels == nil {
		return
	}
	dirs, err := filepath.Glob(filepath.Join(d.embedConfig().Root, "io.containerd.snapshotter.v1.*", "snapshots"))
	for _, dir := range append(dirs, d.host.pause) {
		err = errors.Join(err, d.host.labels.Publish(dir))
	}
	if err != nil {
		d.log.Warn("cannot label what every container reads: SELinux may keep containers from starting", "err", err)
	}
}
