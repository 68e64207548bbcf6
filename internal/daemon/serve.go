// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/history/observe"
	"berth/internal/serve/access"
	"berth/internal/serve/checkpoint"
	"berth/internal/serve/cri"
	"berth/internal/serve/nodeapi"
	"berth/internal/serve/stats"
	"berth/internal/serve/stream"
)

// stopTimeout is how long calls in flight may take when berth stops.
const stopTimeout = 5 * time.Second

// serving is what clients call, above everything else.
type serving struct {
	access      *access.Log
	checkpoints *checkpoint.Service
	restorer    *checkpoint.Restorer
	stats       *stats.Service
	streams     *stream.Service
	server      *stream.Server
	cri         *cri.Server
	node        *nodeapi.Node
}

// openServing makes what clients call.
func openServing(w wings) (s serving, err error) {
	s.access = openAccess(w)
	s.openCheckpoints(w)
	s.stats = openStats(w)
	if err := s.openStreams(w); err != nil {
		return s, err
	}
	s.openCRI(w)
	return s, nil
}

// openCRI makes the server of CRI, which is served once the parts below it run.
func (s *serving) openCRI(w wings) {
	w.metrics.Read(observe.Sources{
		Pods:       w.heart.core.Pods,
		Ops:        w.ops,
		Feed:       w.heart.core.Feed,
		Budgets:    s.streams.Budgets(),
		LogDropped: w.log.Dropped,
		Tracing:    w.history.tracing,
	})
	w.metrics.ReadImages(w.images.service)
	pods := w.hooks.plugins.serve(served{w.heart.core.Pods, w.containerd.reach, w.hooks.plugins})
	s.node = &nodeapi.Node{
		Clock:        w.clock,
		Pods:         w.heart.core.Pods,
		Ops:          w.ops,
		Recorder:     w.heart.core.Recorder,
		ImageService: w.images.service,
		Verifier:     w.images.stored,
		Profiles:     w.images.profiles,
		Disks: &nodeapi.Disks{
			Dirs:    []string{w.cfg.Root, w.cfg.State},
			Without: []string{filepath.Join(w.cfg.Root, "containerd"), profilesIn(w.cfg.Root)},
		},
		Settings: nodeapi.Settings(&w.cfg),
		NamesOf:  (&asked{w.heart.core.Pods}).names,
		Exact:    w.host.kernel.Exact(),
		Reach:    w.containerd.reach,
	}
	health := newHealth(w, s.node.Disks)
	w.metrics.ReadNode(observe.Node{
		Pods:       func() []*runtimeapi.PodSandbox { return w.heart.core.Pods.ListPodSandbox(nil) },
		Containers: func() []*runtimeapi.Container { return w.heart.core.Pods.ListContainers(nil) },
		Ready:      map[string]func() error{"runtime": health.Runtime, "network": health.Network},
		Space:      s.node.Disks.Space,
		Dirs:       map[string]string{"root": w.cfg.Root, "state": w.cfg.State},
	})
	s.cri = cri.NewServer(
		&cri.Runtime{
			Pods:        pods,
			Streams:     streams{s.server, s.streams, w.heart.core.Pods.Target},
			Stats:       s.stats,
			Checkpoints: s.checkpoints,
			Restorer:    s.restorer,
			Health:      health,
			Subscribe:   w.heart.core.Subscribe,
			Name:        w.cfg.CRI.RuntimeName,
			EncodeAgain: !w.cfg.Tricks.EncodeOnce,
		},
		&cri.Image{
			Images:   known{w.images.service, w.containerd, w.heart.core},
			Profiles: knownProfiles{w.images.profiles, w.heart.core},
			Handlers: w.host.snapshotters(),
		},
		w.log.Logger,
		w.metrics,
		w.ops,
		w.history.tracing.Server()...)
	nodeapi.RegisterNode(s.cri, s.node)
	nodeapi.RegisterControl(s.cri, nodeapi.Control{Node: s.node, Note: w.heart.core.obs.Note})
}

// serve serves CRI once the records are restored, until stop ends, and then lets calls in flight
// finish.
func (d *daemon) serve(stop context.Context, ready func()) error {
	if !d.restored(stop) {
		return nil
	}
	// Most often containerd is there in a moment: a kubelet need not see a node that is not ready.
	grace, cancel := context.WithTimeout(stop, containerdGrace)
	err := d.containerd.link.await(grace)
	cancel()
	if err != nil && stop.Err() == nil {
		d.log.Warn("berth serves without containerd: pods and images are not made until it is there", "err", err)
	}
	drained := make(chan struct{})
	undo := context.AfterFunc(stop, func() {
		defer close(drained)
		d.cri.Drain(stopTimeout)
	})
	defer func() {
		if !undo() {
			<-drained
		}
	}()
	d.log.Info("berth is ready", "address", d.cfg.Address)
	var served sync.WaitGroup
	defer func() { // Drain has closed them, unless the server broke
		for _, lis := range d.sockets.also {
			_ = lis.Close()
		}
		served.Wait()
	}()
	for _, lis := range d.sockets.also {
		served.Go(func() {
			if err := d.cri.Serve(lis); err != nil && stop.Err() == nil {
				d.log.Error("CRI is no longer served on one of cri.sockets", "socket", lis.Addr(), "err", err)
			}
		})
	}
	watching, unwatch := context.WithCancel(stop)
	defer unwatch() // also where the server broke
	served.Go(func() {
		d.sockets.keep(watching, d.sockets.cri(), func(lis net.Listener) {
			if err := d.cri.Serve(lis); err != nil && stop.Err() == nil {
				d.log.Error("CRI is no longer served on a socket that was made again", "socket", lis.Addr(), "err", err)
			}
		})
	})
	ready()
	if err := d.cri.Serve(d.sockets.lis); err != nil && stop.Err() == nil {
		return fmt.Errorf("serve %s: %w", d.cfg.Address, err)
	}
	return nil
}
