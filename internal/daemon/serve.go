// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"berth/internal/history/observe"
	"berth/internal/serve/cri"
)

// stopTimeout is how long calls in flight may take when berth stops.
const stopTimeout = 5 * time.Second

// openCRI makes the server of CRI, which is served once the parts below it run.
func (d *daemon) openCRI() error {
	d.metrics.Read(observe.Sources{
		Pods:       d.core.Pods,
		Feed:       d.core.Feed,
		Budgets:    d.streams.Budgets(),
		LogDropped: d.log.Dropped,
		Tracing:    d.tracing,
	})
	d.metrics.ReadImages(d.images)
	d.cri = cri.NewServer(
		&cri.Runtime{
			Pods:        d.pods(),
			Streams:     streams{d.server, d.streams, d.core.Pods.Target},
			Stats:       d.stats,
			Checkpoints: d.checkpoints,
			Restorer:    d.restorer,
			Health:      d.health(),
			Subscribe:   d.core.Subscribe,
			Name:        d.cfg.CRI.RuntimeName,
			EncodeAgain: !d.cfg.Tricks.EncodeOnce,
		},
		&cri.Image{
			Images:   known{d.images, d},
			Handlers: slices.Sorted(maps.Keys(d.host.handlers)),
		},
		admin{
			core:   d.core,
			images: d.images,
			disk:   &disk{dirs: []string{d.cfg.Root, d.cfg.State}, without: filepath.Join(d.cfg.Root, "containerd")},
			stored: d.stored,
			cfg:    &d.cfg,
			exact:  d.kernel.Exact(),
			reach:  d.reach,
		},
		d.log.Logger,
		d.metrics,
		d.tracing.Server()...)
	return nil
}

// serve serves CRI once the records are restored, until stop ends, and then lets calls in flight
// finish.
func (d *daemon) serve(stop context.Context, ready func()) error {
	if !d.restored(stop) {
		return nil
	}
	// Most often containerd is there in a moment: a kubelet need not see a node that is not ready.
	grace, cancel := context.WithTimeout(stop, containerdGrace)
	err := d.link.await(grace)
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
		for _, lis := range d.also {
			_ = lis.Close()
		}
		served.Wait()
	}()
	for _, lis := range d.also {
		served.Go(func() {
			if err := d.cri.Serve(lis); err != nil && stop.Err() == nil {
				d.log.Error("CRI is no longer served on one of cri.sockets", "socket", lis.Addr(), "err", err)
			}
		})
	}
	watching, unwatch := context.WithCancel(stop)
	defer unwatch() // also where the server broke
	served.Go(func() {
		d.keepSockets(watching, d.criSockets(), func(lis net.Listener) {
			if err := d.cri.Serve(lis); err != nil && stop.Err() == nil {
				d.log.Error("CRI is no longer served on a socket that was made again", "socket", lis.Addr(), "err", err)
			}
		})
	})
	ready()
	if err := d.cri.Serve(d.lis); err != nil && stop.Err() == nil {
		return fmt.Errorf("serve %s: %w", d.cfg.Address, err)
	}
	return nil
}
