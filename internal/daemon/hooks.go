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

// hooks are what the controller calls besides its observers.
type hooks struct {
	plugins  plugins
	cadvisor *cadvisor.Service
}

// openHooks makes what the controller calls, and which asks pods about it.
func openHooks(b base, s *sockets, h host, e engine, pods *asked) (k hooks, err error) {
	if k.plugins, err = openPlugins(b, h, e, pods); err != nil {
		return k, err
	}
	k.cadvisor = openCAdvisor(b, s, e, pods)
	return k, nil
}

// openCAdvisor opens what the cAdvisor in the kubelet connects to. It has to be there before the
// kubelet is started, which is when berth says that it is ready: cAdvisor tries to connect once.
func openCAdvisor(b base, s *sockets, e engine, pods *asked) *cadvisor.Service {
	cgroups := "/sys/fs/cgroup"
	if !cgroup.V2() {
		cgroups = filepath.Join(cgroups, "cpu")
	}
	link := b.cfg.Containerd.Link
	if link == strings.TrimPrefix(b.cfg.Containerd.Address, "unix://") {
		link = "" // cAdvisor asks that containerd
	}
	service := cadvisor.Open(cadvisor.Config{
		Listen: newListener,
		Keep: func(ctx context.Context, lis *net.UnixListener, serve func(net.Listener)) {
			path := lis.Addr().String()
			s.keep(ctx, []*socket{{of: "the socket for cAdvisor", lis: lis, path: path}}, serve)
		},
		Link:    link,
		CRI:     b.cfg.Address,
		State:   b.cfg.State,
		Cgroups: cgroups,
		Pods:    func() cadvisor.Pods { return pods },
		Runtime: e.ctrd,
		Version: version.String(),
		Log:     b.log.Logger,
	})
	b.undo.add(service.Close)
	return service
}
