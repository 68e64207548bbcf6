// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"net"
	"path/filepath"
	"strings"

	"berth/internal/base/version"
	"berth/internal/host/cgroup"
	"berth/internal/serve/cadvisor"
)

// openCAdvisor opens what the cAdvisor in the kubelet connects to. It has to be there before the
// kubelet is started, which is when berth says that it is ready: cAdvisor tries to connect once.
func (d *daemon) openCAdvisor() error {
	cgroups := "/sys/fs/cgroup"
	if !cgroup.V2() {
		cgroups = filepath.Join(cgroups, "cpu")
	}
	link := d.cfg.Containerd.Link
	if link == strings.TrimPrefix(d.cfg.Containerd.Address, "unix://") {
		link = "" // cAdvisor asks that containerd
	}
	d.cadvisor = cadvisor.Open(cadvisor.Config{
		Listen: newListener,
		Keep: func(ctx context.Context, lis *net.UnixListener, serve func(net.Listener)) {
			path := lis.Addr().String()
			d.keepSockets(ctx, []*socket{{of: "the socket for cAdvisor", lis: lis, path: path}}, serve)
		},
		Link:    link,
		State:   d.cfg.State,
		Cgroups: cgroups,
		Pods:    func() cadvisor.Pods { return d.core.Pods },
		Runtime: d.ctrd,
		Version: version.String(),
		Log:     d.log.Logger,
	})
	d.undo = append(d.undo, d.cadvisor.Close)
	return nil
}
