// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/pkg/cap"
	"golang.org/x/sync/errgroup"

	"berth/internal/asynclog"
	"berth/internal/cadvisor"
	"berth/internal/cdi"
	"berth/internal/cgroup"
	"berth/internal/checkpoint"
	"berth/internal/config"
	"berth/internal/connection"
	"berth/internal/cri"
	"berth/internal/ctrd"
	"berth/internal/embed"
	"berth/internal/exit"
	"berth/internal/fdstore"
	"berth/internal/image"
	"berth/internal/imagestore"
	"berth/internal/logs"
	"berth/internal/network"
	"berth/internal/nri"
	"berth/internal/observe"
	"berth/internal/pidfd"
	"berth/internal/pins"
	"berth/internal/pod"
	"berth/internal/podfiles"
	"berth/internal/probe"
	"berth/internal/selinux"
	"berth/internal/spec"
	"berth/internal/state"
	"berth/internal/stats"
	"berth/internal/stream"
)

// stopTimeout is how long calls in flight may take when berth stops.
const stopTimeout = 5 * time.Second

// Serve runs berth until ctx ends. What comes from changes takes the place of cfg, which differs from
// it in settings that need no restart. ready is called once berth serves. The caller runs the log, and
// goes on running it until Serve has returned. The error says why berth could not start, or what
// broke.
func Serve(ctx context.Context, cfg config.Config, changes <-chan config.Config, ready func(), log *asynclog.Log) error {
	observe.BridgeLibraries(log.Logger)
	d := &daemon{cfg: cfg, log: log, metrics: observe.NewMetrics(), admitted: make(chan struct{})}
	d.settings.Store(&cfg)
	defer d.close()
	if err := d.open(ctx); err != nil {
		return err
	}
	return d.run(ctx, changes, ready)
}

// daemon is everything that was opened, in order; close undoes it in reverse.
type daemon struct {
	cfg     config.Config // of the start
	log     *asynclog.Log
	libexec string
	undo    []func() error

	store    *state.Store
	conn     *connection.Connection
	embedded atomic.Pointer[embed.Server] // nil until it runs, and where another containerd is configured
	ctrd     *ctrd.Containerd
	stored   *imagestore.Store
	images   *image.Service
	network  *network.Network
	kernel   *pidfd.Watcher
	ooms     *cgroup.OOMWatch // nil where the kernel did not give one
	kept     *fdstore.Store
	passed   passed
	lis      net.Listener
	core     *Core
	stdios   *stdios
	streams  *stream.Service
	server   *stream.Server
	stats    *stats.Service
	cadvisor *cadvisor.Service
	devices  *cdi.Registry
	probe    *probe.Probe
	nri      *nri.Service  // nil if there are no plug-ins
	admitted chan struct{} // closed once the plug-ins that berth starts take part, or are not waited for

	checkpoints *checkpoint.Service
	restorer    *checkpoint.Restorer

	metrics  *observe.Metrics
	tracing  *observe.Tracing // nil if tracing is off
	handlers map[string]pod.Handler
	settings atomic.Pointer[config.Config] // those that hold now
	podCIDR  atomic.Pointer[string]        // as the kubelet says it; nil: it has not
	apparmor *appArmor                     // nil where AppArmor is off
	publish  func()                        // labels what every container reads; nil without SELinux
}

func (d *daemon) close() {
	for i := len(d.undo) - 1; i >= 0; i-- {
		if err := d.undo[i](); err != nil {
			d.log.Warn("stop", "err", err)
		}
	}
}

func (d *daemon) open(ctx context.Context) error {
	cfg := d.cfg
	var inherited map[string]int
	var err error
	d.passed, inherited = takePassed()
	if d.kept, err = fdstore.Open(d.log.Logger); err != nil {
		return err
	}
	if d.libexec, err = findLibexec(cfg.Libexec); err != nil {
		return err
	}
	if err := errors.Join(makeDir(cfg.Root, rootMode), makeDir(cfg.State, stateMode)); err != nil {
		return err
	}
	if d.store, err = state.Open(cfg.Root); err != nil {
		return err
	}
	d.undo = append(d.undo, d.store.Close)
	if err := d.openListener(); err != nil {
		return err
	}
	if err := d.openTracing(ctx); err != nil {
		return err
	}
	if err := d.openContainerd(); err != nil {
		return err
	}
	adapter := ctrd.Config{
		Owner:          d.store.Owner(),
		Snapshotter:    cfg.Containerd.Snapshotter,
		Snapshotters:   handlerSnapshotters(cfg.Runtimes),
		StateDir:       filepath.Dir(strings.TrimPrefix(cfg.Containerd.Address, "unix://")), // unless it is configured otherwise
		CleanupDir:     filepath.Join(cfg.Root, "cleanup"),
		UnsyncedLayers: !cfg.Containerd.SyncLayers,
		Logger:         d.log.Logger,
	}
	if d.embeds() {
		adapter.SetAside, adapter.StateDir = d.setAside, d.embedConfig().State
	}
	d.ctrd = ctrd.New(d.conn, adapter)
	if d.stored, err = imagestore.New(d.conn, imagestore.Config{
		Snapshotter:            cfg.Containerd.Snapshotter,
		Snapshotters:           handlerSnapshotters(cfg.Runtimes),
		RegistryDir:            cfg.Image.RegistryDir,
		DecryptionKeysDir:      cfg.Image.DecryptionKeysDir,
		Credentials:            credentials(cfg.Image.Auth),
		MaxConcurrentDownloads: cfg.Image.MaxConcurrentDownloads,
		MaxConcurrentUnpacks:   d.unpacks(),
		Owner:                  d.store.Owner(),
		MountDir:               filepath.Join(cfg.State, "images"),
		Logger:                 d.log.Logger,
		Panicked:               d.panickedOverImage,
	}); err != nil {
		return err
	}
	d.images = image.New(d.stored, image.Config{
		PullTimeout:       time.Duration(cfg.Image.PullTimeout),
		MinBytesPerMinute: int64(cfg.Image.MinBytesPerMinute),
		Pinned:            sandboxImages(cfg.Runtimes),
		Logger:            d.log.Logger,
		Panicked:          d.panickedOverImage,
	})
	if err := d.openNetwork(); err != nil {
		return err
	}
	// The core is made after the kernel witness, which reports to it from Run on.
	if d.kernel, err = pidfd.New(func(f exit.Fact) { d.core.Pods.Exited(f) }, d.kept, inherited); err != nil {
		return err
	}
	return d.openPods()
}

// panickedOverImage counts a panic over an image.
func (d *daemon) panickedOverImage() { d.metrics.Panicked("image") }

// follow has settings hold that were read again, until ctx ends.
func (d *daemon) follow(ctx context.Context, changes <-chan config.Config) {
	for {
		select {
		case <-ctx.Done():
			return
		case cfg := <-changes:
			d.settings.Store(&cfg)
			d.stored.SetCredentials(credentials(cfg.Image.Auth))
		}
	}
}

// unpacks is how many layers of an image are unpacked at the same time. Another containerd unpacks
// itself, layer by layer.
func (d *daemon) unpacks() int {
	if !d.embeds() {
		return 1
	}
	return d.cfg.Image.MaxConcurrentUnpacks
}

// openListener takes or opens the CRI socket before anything that may take long: calls wait in its
// backlog until they are served.
func (d *daemon) openListener() (err error) {
	if d.lis, err = d.listen(); err != nil {
		return err
	}
	d.undo = append(d.undo, func() error {
		if err := d.lis.Close(); !errors.Is(err, net.ErrClosed) { // the server has closed it if it has served
			return err
		}
		return nil
	})
	return nil
}

func (d *daemon) openTracing(ctx context.Context) (err error) {
	d.tracing, err = observe.NewTracing(ctx, d.cfg.Tracing)
	if d.tracing != nil {
		d.undo = append(d.undo, d.tracing.Close)
	}
	return err
}

func (d *daemon) openNetwork() error {
	n := d.cfg.Network
	var def *network.Bridge
	if n.UseDefault {
		def = &network.Bridge{Name: n.DefaultBridge, Subnet: n.DefaultSubnet, DataDir: filepath.Join(d.cfg.Root, "ipam")}
	}
	var groups network.Groups // a nil *cgroup.Groups would not be a nil interface
	if g, err := cgroup.NewGroups("cni-" + d.store.Owner()); err != nil {
		d.log.Warn("CNI plug-ins run without cgroups of their own: what a call leaves that is cut off is not ended", "err", err)
	} else {
		groups = pluginGroups{g}
	}
	var err error
	d.network, err = network.New(network.Config{
		ConfDir:  n.ConfDir,
		BinDirs:  append(append([]string(nil), n.BinDirs...), cniDirs(d.libexec)...),
		NetNSDir: n.NetNSDir,
		Owner:    d.store.Owner(),
		CacheDir: filepath.Join(d.cfg.Root, "cni"),
		Default:  def,
		Handlers: handlerNetworks(d.cfg.Runtimes),
		Groups:   groups,
		Logger:   d.log.Logger,
	})
	return err
}

func (d *daemon) openPods() error {
	caps, err := cap.Current()
	if err != nil {
		return fmt.Errorf("look at own capabilities: %w", err)
	}
	if d.handlers, err = d.makeHandlers(); err != nil {
		return err
	}
	host, err := spec.ReadHost(caps)
	if err != nil {
		return err
	}
	host.RequireHugetlb = d.cfg.Pod.RequireHugetlb
	if d.apparmor = openAppArmor(d.log.Logger); d.apparmor != nil {
		host.AppArmorDefault, host.LoadAppArmor = appArmorProfile, d.apparmor.ensure
	}
	var labels pod.Labels // a nil *selinux.Labels would not be a nil interface
	l, err := selinux.Open()
	if err != nil { // what needs the labels fails, and nothing else
		d.log.Warn("cannot read the labels of this host's SELinux policy", "err", err)
	}
	if l != nil {
		host.SELinux, labels = l, l
	}
	if host.MinOOMScoreAdj > -1000 {
		d.log.Warn("oom_score_adj of pods cannot be lowered: berth lacks CAP_SYS_RESOURCE", "least", host.MinOOMScoreAdj)
	}
	pause, err := installPause(d.libexec, filepath.Join(d.cfg.State, "pause"))
	if err != nil {
		return err
	}
	if l != nil {
		d.publish = func() {
			if err := publish(l, pause, filepath.Join(d.cfg.Root, "containerd")); err != nil {
				d.log.Warn("cannot label what every container reads: SELinux may keep containers from starting", "err", err)
			}
		}
		d.publish()
	}
	d.probe = probe.New(probe.Config{
		Handlers:          d.handlers,
		Snapshotter:       d.cfg.Containerd.Snapshotter,
		RecursiveReadOnly: host.RecursiveReadOnly,
		MapsOwners: func(ctx context.Context, snapshotter string) (bool, error) {
			return imagestore.MapsOwners(ctx, d.conn, snapshotter)
		},
		SandboxShim: d.ctrd.SandboxShim,
		Logger:      d.log.Logger,
	})
	d.devices = cdi.Open(d.cfg.CDI.SpecDirs)
	if err := d.openNRI(); err != nil {
		return err
	}
	d.stdios = &stdios{
		ended: func(id string) { d.streams.EndStdin(id) }, // there are none before openStreams
		open:  map[string]*logs.Log{},
	}
	d.openCAdvisor()
	if d.ooms, err = cgroup.NewOOMWatch(func(ids []string) { d.core.Pods.OOMNoted(ids) }); err != nil {
		d.log.Warn("the kernel cannot notify of OOM kills: they are counted when a container ends", "err", err)
	} else {
		d.undo = append(d.undo, d.ooms.Close)
	}
	d.core = NewCore(pod.Config{
		Handlers:       d.handlers,
		DefaultHandler: d.cfg.DefaultRuntime,
		Host:           host,
		AlwaysPause:    d.cfg.Pod.Pause == config.PauseAlways,
		PauseRootfs:    pause,
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
			Files:          podfiles.New(d.cfg.Root, d.cfg.State),
			Pins:           pins.New(filepath.Join(d.cfg.State, "pins")),
			Stdios:         d.stdios,
			Images:         images{d.images},
			Store:          d.store,
			Labels:         labels,
			Checkpoints:    checkpoint.Archives{},
			Devices:        d.devices,
			UserNamespaces: d.probe.UserNamespaces,
			SandboxShim:    d.probe.SandboxShim,
			Hooks:          d.hooks(),
		},
		Removed:       d.removed,
		Happened:      d.cadvisor.Look,
		Load:          d.store.Load,
		Restored:      d.kernel.ForgetUnclaimed,
		Follow:        d.ctrd.Follow,
		Sweep:         d.stored.Sweep,
		ImageChanged:  d.images.Changed,
		RefreshImages: d.images.Refresh,
		Metrics:       d.metrics,
		Tracing:       d.tracing,
		Log:           d.log.Logger,
		Panicked:      crash(d.log),
	})
	d.undo = append(d.undo, func() error { d.core.Feed.Close(); return nil })
	d.openCheckpoints()
	d.stats = stats.New(stats.Config{
		Pods:       d.core.Pods,
		Layers:     d.ctrd,
		Mountpoint: d.layersMountpoint,
		Cgroups:    "/sys/fs/cgroup",
		Unified:    cgroup.V2(),
		Logger:     d.log.Logger,
	})
	return d.openStreams()
}

// run serves until ctx ends or something breaks.
func (d *daemon) run(ctx context.Context, changes <-chan config.Config, ready func()) error {
	server := cri.NewServer(
		&cri.Runtime{
			Pods:        d.pods(),
			Streams:     streams{d.server, d.streams},
			Stats:       d.stats,
			Checkpoints: d.checkpoints,
			Restorer:    d.restorer,
			Health:      health{d},
			Subscribe:   d.core.Subscribe,
		},
		&cri.Image{Images: known{d.images, d}, Handlers: slices.Sorted(maps.Keys(d.handlers))}, admin{d}, d.log.Logger, d.metrics, d.tracing.Server()...)

	// Everything below the CRI server goes on until the calls in flight have ended.
	below, stopBelow := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBelow()
	eg, below := errgroup.WithContext(below)
	stop, cancel := context.WithCancel(below)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()

	// The witnesses run before the records are compared, so that what ends meanwhile is noticed.
	g := &group{eg, crash(d.log)}
	restored := make(chan struct{})
	g.Go("kernel witness", func() error { return d.kernel.Run(below) })
	if d.ooms != nil {
		g.Go("OOM kills", func() error {
			defer context.AfterFunc(below, func() { _ = d.ooms.Close() })()
			return d.ooms.Run()
		})
	}
	g.Go("descriptor store", func() error { return d.kept.Run(below) })
	g.Go("settings", func() error {
		d.follow(below, changes)
		return nil
	})
	g.Go("images", func() error { return d.images.Run(below) })
	g.Go("user namespaces", func() error {
		d.probe.RunUserNamespaces(below, d.core.Await)
		return nil
	})
	g.Go("sandboxes of shims", func() error {
		if d.cfg.Pod.Pause != config.PauseAlways {
			d.probe.RunSandboxShims(below, d.core.Await)
		}
		return nil
	})
	g.Go("CDI devices", func() error { return d.devices.Run(below) })
	d.runCheckpoints(below, g, restored)
	g.Go("features of runtimes", func() error {
		d.probe.RunFeatures(below)
		return nil
	})
	g.Go("versions of OCI runtimes", func() error {
		d.probe.RunVersions(below)
		return nil
	})
	g.Go("cAdvisor", func() error {
		select {
		case <-restored: // it asks for pods and containers
			persist(below, d.log, "serve cAdvisor", d.cadvisor.Run)
		case <-below.Done():
		}
		return nil
	})
	g.Go("statistics", func() error { return d.stats.Run(below) })
	g.Go("core", func() error { return d.core.Run(below, restored) })
	d.runNRI(below, g, restored)
	g.Go("streams", func() error {
		select {
		case <-below.Done():
		case <-restored: // what an earlier berth has left is looked for in tasks that are known
		}
		return d.streams.Run(below)
	})
	g.Go("streaming server", func() error {
		persist(below, d.log, "serve streams", d.server.Run)
		return nil
	})
	g.Go("network", func() error {
		persist(below, d.log, "follow the network configuration", d.network.Run)
		return nil
	})
	d.metrics.Read(observe.Sources{
		Pods:       d.core.Pods,
		Feed:       d.core.Feed,
		Budgets:    d.streams.Budgets(),
		LogDropped: d.log.Dropped,
		Tracing:    d.tracing,
	})
	if d.cfg.Metrics.Address != "" {
		g.Go("metrics", func() error {
			persist(below, d.log, "serve metrics", func(ctx context.Context) error {
				return d.metrics.Serve(ctx, d.cfg.Metrics.Address, d.log.Logger)
			})
			return nil
		})
	}
	if d.embeds() {
		g.Go("embedded containerd", func() error { return d.runEmbedded(below, restored) })
	}
	g.Go("CRI", func() error {
		defer stopBelow()
		select {
		case <-stop.Done():
			return nil
		case <-restored:
		}
		// Most often containerd is there in a moment: a kubelet need not see a node that is not ready.
		grace, cancel := context.WithTimeout(stop, containerdGrace)
		err := d.core.Await(grace)
		cancel()
		if err != nil && stop.Err() == nil {
			d.log.Warn("berth serves without containerd: pods and images are not made until it is there", "err", err)
		}
		return d.serve(stop, server, ready)
	})
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// serve serves CRI until stop ends, and then lets calls in flight finish.
func (d *daemon) serve(stop context.Context, server *cri.Server, ready func()) error {
	drained := make(chan struct{})
	undo := context.AfterFunc(stop, func() {
		defer close(drained)
		server.Drain(stopTimeout)
	})
	defer func() {
		if !undo() {
			<-drained
		}
	}()
	d.log.Info("berth is ready", "address", d.cfg.Address)
	ready()
	if err := server.Serve(d.lis); err != nil && stop.Err() == nil {
		return fmt.Errorf("serve %s: %w", d.cfg.Address, err)
	}
	return nil
}
