// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"berth/internal/base/config"
	"berth/internal/base/retry"
)

// part is one of the things that run for as long as berth does. If it returns an error, berth ends.
type part struct {
	name string
	when when
	run  func(ctx context.Context) error
}

// when says when a part starts.
type when int

const (
	atOnce       when = iota
	onceRestored      // once the records are restored: it asks for pods and containers
)

// parts returns the table of everything that runs below the CRI server, in the order of life. A
// part that is not configured, or has nothing to do on this host, returns at once.
func (d *daemon) parts(changes <-chan config.Config) []part {
	return []part{
		// The witnesses run before the records are compared, so that no end is missed.
		{"kernel witness", atOnce, func(ctx context.Context) error {
			return d.host.kernel.Run(ctx, d.clock.Now, d.heart.core.Pods.Exited)
		}},
		{"OOM kills", atOnce, d.runOOMs},
		{"descriptor store", atOnce, d.sockets.kept.Run},
		{"flight recorder", atOnce, d.history.recorder.Run},
		{"access log", atOnce, d.access.Run},
		{"records", atOnce, d.watchRecords},
		{"core", atOnce, d.heart.core.Run}, // it restores the records, and then follows containerd
		{"embedded containerd", atOnce, d.runEmbedded},

		{"shims apart from the unit", atOnce, d.engine.shims.RunApart},

		{"memory", atOnce, func(ctx context.Context) error { return giveBack(ctx, d.log.Logger) }},
		{"settings", atOnce, d.follow(changes)},
		{"metrics", atOnce, d.persistently("serve metrics", d.serveMetrics)},
		{"network", atOnce, d.persistently("follow the network configuration", func(ctx context.Context) error {
			return d.host.network.Run(ctx, networkNotes{d.heart.core.obs})
		})},
		{"images", atOnce, d.images.service.Run},
		{"durable images", atOnce, d.images.keepDurable},
		{"archives of images", atOnce, d.images.preload.Run},
		{"peers", atOnce, d.persistently("serve peers", d.images.servePeers)},
		{"statistics", atOnce, d.stats.Run},
		{"features of OCI runtimes", atOnce, d.engine.probe.RunFeatures},
		{"versions of OCI runtimes", atOnce, d.engine.probe.RunVersions},
		{"user namespaces", atOnce, func(ctx context.Context) error {
			return d.engine.probe.RunUserNamespaces(ctx, d.containerd.link.await)
		}},
		{"sandboxes of shims", atOnce, d.probeSandboxShims},

		{"watchdog of the unit", onceRestored, d.feedWatchdog},
		{"leases of addresses", onceRestored, d.releaseLeases},
		{"checkpoints", onceRestored, d.checkpoints.Run},
		{"restored pods", onceRestored, d.restorer.Run},
		{"cAdvisor", onceRestored, d.persistently("serve cAdvisor", d.hooks.cadvisor.Run)},
		{"NRI plug-ins", onceRestored, func(ctx context.Context) error {
			return d.hooks.plugins.run(ctx, d.containerd.link, d.log)
		}},
		{"registration of NRI plug-ins", onceRestored, func(ctx context.Context) error {
			return d.hooks.plugins.admit(ctx, d.log.Logger)
		}},
		{"streams", onceRestored, d.streams.Run}, // the tasks of what an earlier berth left are known
		{"streaming server", atOnce, d.persistently("serve streams", d.server.Run)},
		{"streaming socket", atOnce, d.persistently("serve streams on streams.socket", d.serveStreamSocket)},
		{"debug socket", atOnce, d.persistently("serve on debug.socket", func(ctx context.Context) error {
			return serveDebug(ctx, d.sockets, d.cfg.Debug.Socket, d.heart.core.Pods.Lanes)
		})},
		{"reading socket", onceRestored, d.persistently("serve on api.read_socket", func(ctx context.Context) error {
			return serveReaders(ctx, d.sockets, d.cfg.API, d.node, d.log.Logger, d.metrics)
		})},
	}
}

// run runs the parts, and serves CRI above them, until ctx ends or something breaks.
func (d *daemon) run(ctx context.Context, changes <-chan config.Config, ready func()) error {
	// Everything below the CRI server goes on until the calls in flight have ended.
	below, stopBelow := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBelow()
	eg, below := errgroup.WithContext(below)
	stop, cancel := context.WithCancel(below)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		d.endContainers(below)
		cancel()
	})()

	g := &group{eg, crash(d.log)}
	for _, p := range d.parts(changes) {
		g.Go(p.name, func() error {
			if p.when == onceRestored && !d.restored(below) {
				return nil
			}
			return p.run(below)
		})
	}
	g.Go("CRI", func() error {
		defer stopBelow()
		return d.serve(stop, ready)
	})
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// restored waits until the records are restored. It returns false if ctx ends before that.
func (d *daemon) restored(ctx context.Context) bool {
	select {
	case <-d.heart.core.Restored():
		return true
	case <-ctx.Done():
		return false
	}
}

// persistently returns a part that is run again whenever it fails: see persist.
func (d *daemon) persistently(what string, f func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		persist(ctx, d.log, what, f)
		return nil
	}
}

// releaseLeases releases addresses that no pod has. A pod without a record keeps its address as
// long as it has a network namespace, which the audit removes.
func (d *daemon) releaseLeases(ctx context.Context) error {
	for range retry.Doubling(ctx.Done(), time.Second, time.Minute) {
		pinned, err := d.host.netns.Pinned(ctx)
		if err == nil {
			pods := d.heart.core.Pods
			err = d.host.network.ReleaseLeases(ctx, func(id, address string) bool {
				return pods.OnRecord(id) || slices.Contains(pinned, id) || pods.HasAddress(address)
			})
		}
		if err == nil {
			break
		}
		if ctx.Err() == nil {
			d.log.Warn("addresses that no pod has may stay in use, retrying", "err", err)
		}
	}
	return nil
}

// watchRecords says when the records cannot be written, and when they can be again.
func (d *daemon) watchRecords(ctx context.Context) error {
	d.records.Watch(ctx, func(err error) {
		if err != nil {
			d.log.Error("the records cannot be written: berth is not ready, what is on record is served, and writing is tried every second", "err", err)
			return
		}
		d.log.Info("the records are written again")
	})
	return nil
}

// runOOMs reports OOM kills to the controller.
func (d *daemon) runOOMs(ctx context.Context) error {
	if d.host.ooms == nil {
		return nil
	}
	return d.host.ooms.Run(ctx, d.heart.core.Pods.OOMNoted)
}

// follow returns a part that puts into effect the settings that were read again.
func (d *daemon) follow(changes <-chan config.Config) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case cfg := <-changes:
				d.settings.Store(&cfg)
				d.images.stored.SetCredentials(credentials(cfg.Image.Auth))
				d.images.stored.SetDiscard(cfg.Image.DiscardBlobs)
				d.images.service.SetPinned(cfg.Image.Pinned)
				usePolicy(d.images.policy, cfg.Image)
				d.images.preload.Look(cfg.Image.PreloadDir)
			}
		}
	}
}

// serveMetrics serves metrics, if an address is configured.
func (d *daemon) serveMetrics(ctx context.Context) error {
	if d.cfg.Metrics.Address == "" {
		<-ctx.Done()
		return nil
	}
	return d.metrics.Serve(ctx, d.cfg.Metrics.Address, d.log.Logger)
}

// probeSandboxShims asks which pods can do without a process, unless none is to.
func (d *daemon) probeSandboxShims(ctx context.Context) error {
	if d.cfg.Pod.Pause == config.PauseAlways {
		return nil
	}
	return d.engine.probe.RunSandboxShims(ctx, d.containerd.link.await)
}

// runEmbedded starts containerd in this process. It returns an error when a containerd that was
// started breaks.
func (d *daemon) runEmbedded(ctx context.Context) error {
	if !d.embeds() {
		return nil
	}
	cfg := d.embedConfig()
	cfg.Program = d.engine.ctrd.ProgramAgain
	s := d.containerd.start(ctx, cfg)
	if s == nil {
		return nil // ctx has ended
	}
	d.containerd.embedded.Store(s)
	d.host.publish() // the directories of layers are there from now on, and no layer was added yet
	d.containerd.conn.Use(s.Client())
	if !d.restored(ctx) {
		return nil
	}
	s.Adopt() // nothing waits for shims before calls are served
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.Failed():
		return fmt.Errorf("embedded containerd: %w", err)
	}
}
