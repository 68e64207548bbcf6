// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"path/filepath"
	"time"

	"berth/internal/base/config"
	"berth/internal/engine/layers"
	"berth/internal/engine/probe"
	"berth/internal/heart/pod"
	"berth/internal/host/cdi"
	"berth/internal/host/cgroup"
	"berth/internal/host/pins"
	"berth/internal/host/podfiles"
	"berth/internal/serve/checkpoint"
	"berth/internal/serve/stats"
)

// openProbe makes what finds out what runtime handlers can do, and reads the CDI specifications.
func (d *daemon) openProbe() error {
	d.probe = probe.New(probe.Config{
		Handlers:          d.host.handlers,
		Snapshotter:       d.cfg.Containerd.Snapshotter,
		RecursiveReadOnly: d.host.RecursiveReadOnly,
		MapsOwners: func(ctx context.Context, snapshotter string) (bool, error) {
			return layers.MapsOwners(ctx, d.conn, snapshotter)
		},
		SandboxShim: d.ctrd.SandboxShim,
		Logger:      d.log.Logger,
	})
	d.devices = cdi.Open(d.cfg.CDI.SpecDirs)
	return nil
}

// openCore makes the controller of pods, and what joins it with containerd's events.
func (d *daemon) openCore() error {
	d.stdios = newStdios(func(id string) { d.streams.EndStdin(id) }) // the two need each other
	var labels pod.Labels                                            // a nil *selinux.Labels would not be a nil interface
	if d.host.labels != nil {
		labels = d.host.labels
	}
	d.core = NewCore(pod.Config{
		Handlers:       d.host.handlers,
		DefaultHandler: d.cfg.DefaultRuntime,
		Host:           d.host.Host,
		AlwaysPause:    d.cfg.Pod.Pause == config.PauseAlways,
		PauseRootfs:    d.host.pause,
		MaxLogLine:     d.cfg.Logs.MaxLine,
		ResolvConf:     "/etc/resolv.conf",
		AttemptTimeout: time.Duration(d.cfg.Lanes.AttemptTimeout),
		BackoffMin:     time.Duration(d.cfg.Lanes.BackoffMin),
		BackoffMax:     time.Duration(d.cfg.Lanes.BackoffMax),
	}, Ports{
		Ports: pod.Ports{
			Runtime:        d.ctrd,
			Kernel:         d.kernel,
			Cgroups:        cgroups{d.ooms},
			Network:        d.network,
			NetNS:          d.netns,
			Files:          podfiles.New(d.cfg.Root, d.cfg.State),
			Pins:           pins.New(filepath.Join(d.cfg.State, "pins")),
			Stdios:         d.stdios,
			Images:         images{d.images},
			Policy:         createPolicy{d.policy, d.images},
			Store:          kept{d.store, d.recorder, d.log},
			Labels:         labels,
			Checkpoints:    checkpoint.Archives{Dir: d.cfg.Root},
			Devices:        d.devices,
			UserNamespaces: d.probe.UserNamespaces,
			SandboxShim:    d.probe.SandboxShim,
			Hooks:          d.plugins.hooks(),
		},
		Removed:       d.plugins.removed,
		Happened:      d.cadvisor.Look,
		Load:          d.load,
		Restored:      d.kernel.ForgetUnclaimed,
		Follow:        d.ctrd.Follow,
		Meets:         d.meets,
		Sweep:         d.stored.Sweep,
		link:          d.link,
		ImageChanged:  d.imageChanged,
		RefreshImages: d.images.Refresh,
		Recorder:      d.recorder,
		Metrics:       d.metrics,
		Tracing:       d.tracing,
		Log:           d.log.Logger,
		Panicked:      crash(d.log),
	})
	d.undo = append(d.undo, func() error { d.core.Feed.Close(); return nil })
	return nil
}

// openStats makes what reads the statistics of pods.
func (d *daemon) openStats() error {
	d.stats = stats.New(stats.Config{
		Pods:       d.core.Pods,
		Layers:     withVolumes{d.ctrd, podfiles.New(d.cfg.Root, d.cfg.State).VolumeUsage},
		Mountpoint: d.images.Mountpoint,
		Cgroups:    "/sys/fs/cgroup",
		Unified:    cgroup.V2(),
		Logger:     d.log.Logger,
	})
	return nil
}
