// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"path/filepath"
	"time"

	"berth/internal/base/config"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/internal/host/pins"
	"berth/internal/host/podfiles"
	"berth/internal/serve/checkpoint"
)

// heart is the controller of pods, with the stdio of their containers.
type heart struct {
	core   *Core
	stdios *stdios
}

// openHeart makes the controller of pods and connects it with containerd's events. From then on
// pods can be asked.
func openHeart(w wings, pods *asked) heart {
	stdios := newStdios()
	var labels pod.Labels // a nil *selinux.Labels would not be a nil interface
	if w.host.labels != nil {
		labels = w.host.labels
	}
	core := NewCore(pod.Config{
		Clock:          w.clock,
		Handlers:       w.host.handlers,
		DefaultHandler: w.cfg.DefaultRuntime,
		Host:           w.host.Host,
		AlwaysPause:    w.cfg.Pod.Pause == config.PauseAlways,
		PauseRootfs:    w.host.pause,
		MaxLogLine:     w.cfg.Logs.MaxLine,
		ResolvConf:     "/etc/resolv.conf",
		AttemptTimeout: w.cfg.Lanes.AttemptTimeout(),
		BackoffMin:     w.cfg.Lanes.BackoffMin(),
		BackoffMax:     time.Duration(w.cfg.Lanes.BackoffMax),
	}, Ports{
		Ports: pod.Ports{
			Runtime:        w.engine.ctrd,
			Kernel:         w.host.kernel,
			Cgroups:        cgroups{w.host.ooms},
			Network:        w.host.network,
			NetNS:          w.host.netns,
			Files:          podfiles.New(w.cfg.Root, w.cfg.State),
			Pins:           pins.New(filepath.Join(w.cfg.State, "pins")),
			Stdios:         stdios,
			Images:         podImages{w.images.service},
			Policy:         createPolicy{w.images.policy, w.images.service},
			Store:          kept{w.records, w.history.recorder, w.log},
			Labels:         labels,
			Profiles:       w.images.profiles.Read,
			Checkpoints:    checkpoint.Archives{Dir: w.cfg.Root},
			Devices:        w.host.devices,
			UserNamespaces: w.engine.probe.UserNamespaces,
			SandboxShim:    w.engine.probe.SandboxShim,
			Hooks:          w.hooks.plugins.hooks(),
			Ops:            w.ops,
		},
		Removed:       w.hooks.plugins.removed,
		Happened:      w.hooks.cadvisor.Look,
		Load:          func() (state.Loaded, error) { return w.history.load(w.records) },
		Loaded:        nameAll,
		Restored:      w.host.kernel.ForgetUnclaimed,
		Follow:        w.engine.ctrd.Follow,
		Meets:         w.engine.meets,
		Sweep:         w.images.stored.Sweep,
		link:          w.containerd.link,
		ImageChanged:  w.images.imageChanged,
		RefreshImages: w.images.service.Refresh,
		Recorder:      w.history.recorder,
		Metrics:       w.metrics,
		Tracing:       w.history.tracing,
		Log:           w.log.Logger,
		Panicked:      crash(w.log),
	})
	w.undo.add(func() error { core.Feed.Close(); return nil })
	pods.Controller = core.Pods
	return heart{core, stdios}
}
