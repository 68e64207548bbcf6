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
	"sync"
	"sync/atomic"
	"time"

	"berth/internal/access"
	"berth/internal/asynclog"
	"berth/internal/cadvisor"
	"berth/internal/cdi"
	"berth/internal/cgroup"
	"berth/internal/checkpoint"
	"berth/internal/config"
	"berth/internal/connection"
	"berth/internal/cri"
	"berth/internal/ctrd"
	"berth/internal/durable"
	"berth/internal/embed"
	"berth/internal/fdstore"
	"berth/internal/image"
	"berth/internal/imagestore"
	"berth/internal/network"
	"berth/internal/observe"
	"berth/internal/peer"
	"berth/internal/pidfd"
	"berth/internal/pins"
	"berth/internal/pod"
	"berth/internal/podfiles"
	"berth/internal/policy"
	"berth/internal/probe"
	"berth/internal/recorder"
	"berth/internal/shims"
	"berth/internal/state"
	"berth/internal/stats"
	"berth/internal/stream"
)

// stopTimeout is how long calls in flight may take when berth stops.
const stopTimeout = 5 * time.Second

// Serve runs berth until ctx ends. What comes from changes takes the place of cfg, which differs
// from it in settings that need no restart. ready is called once berth serves. The caller runs the
// log, and goes on running it until Serve has returned. The error says why berth could not start,
// or what broke.
func Serve(ctx context.Context, cfg config.Config, changes <-chan config.Config, ready func(), log *asynclog.Log) error {
	observe.BridgeLibraries(log.Logger)
	d := &daemon{cfg: cfg, log: log, metrics: observe.NewMetrics()}
	d.settings.Store(&cfg)
	defer d.close()
	if err := d.open(ctx); err != nil {
		return err
	}
	return d.run(ctx, changes, ready)
}

// daemon is everything that was opened, in order; close undoes it in reverse.
type daemon struct {
	cfg      config.Config                 // of the start
	settings atomic.Pointer[config.Config] // those that hold now
	log      *asynclog.Log
	metrics  *observe.Metrics
	tracing  *observe.Tracing // nil if tracing is off
	libexec  string
	undo     []func() error

	store    *state.Store
	recorder *recorder.Recorder
	kept     *fdstore.Store
	lis      net.Listener
	also     []net.Listener // of cri.sockets

	conn     *connection.Connection
	embedded atomic.Pointer[embed.Server] // nil until it runs, and where another containerd is configured
	ctrd     *ctrd.Containerd
	stored   *imagestore.Store
	images   *image.Service
	preload  *image.Preload
	policy   *policy.Guard
	peers    *peer.Server // nil: nothing is served to peers

	network  *network.Network
	netns    *pins.Networks
	kernel   *pidfd.Watcher
	ooms     *cgroup.OOMWatch // nil where the kernel has none left
	host     host
	probe    *probe.Probe
	devices  *cdi.Registry
	plugins  plugins
	cadvisor *cadvisor.Service

	core        *Core
	checkpoints *checkpoint.Service
	restorer    *checkpoint.Restorer
	stats       *stats.Service
	stdios      *stdios
	access      *access.Log
	streams     *stream.Service
	server      *stream.Server
	cri         *cri.Server
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
	var err error
	listeners, inherited := takePassed()
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
	d.openRecorder()
	if err := d.openListener(listeners); err != nil {
		return err
	}
	if err := d.openTracing(ctx); err != nil {
		return err
	}
	boot, err := durable.OpenBoot(cfg.Root)
	if err != nil {
		d.log.Warn("it cannot be noted in which boot images are made: after a power cut they may be checked needlessly, or not at all", "err", err)
	}
	if err := d.openContainerd(); err != nil {
		return err
	}
	adapter := ctrd.Config{
		Owner:          d.store.Owner(),
		Snapshotter:    cfg.Containerd.Snapshotter,
		Snapshotters:   handlerSnapshotters(cfg.Runtimes),
		UnsyncedLayers: !cfg.Containerd.SyncLayers,
		Trust:          d.trust,
		Logger:         d.log.Logger,
	}
	node := shims.Config{
		StateDir: filepath.Dir(strings.TrimPrefix(cfg.Containerd.Address, "unix://")), // unless it is configured otherwise
		Logger:   d.log.Logger,
	}
	if cfg.Tricks.CleanupScript {
		node.CleanupDir = filepath.Join(cfg.Root, "cleanup")
	}
	if d.embeds() {
		adapter.SetAside, node.StateDir = d.setAside, d.embedConfig().State
	}
	adapter.Shims = shims.New(node)
	d.ctrd = ctrd.New(d.conn, adapter)
	contents := ""
	if d.embeds() {
		contents = d.embedConfig().Root
	}
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
		Boot:                   boot,
		Root:                   contents,
		Checked:                d.metrics.DurabilityChecked,
		Peers:                  d.openPeers(),
	}); err != nil {
		return err
	}
	if d.embeds() { // whatever else uses another containerd may make images there after this one has stopped
		d.undo = append(d.undo, d.stored.Settle)
	}
	d.openPolicy()
	d.images = image.New(d.stored, image.Config{
		PullTimeout:       time.Duration(cfg.Image.PullTimeout),
		MinBytesPerMinute: int64(cfg.Image.MinBytesPerMinute),
		Needed:            sandboxImages(cfg.Runtimes),
		Pinned:            cfg.Image.Pinned,
		Logger:            d.log.Logger,
		Panicked:          d.panickedOverImage,
		Pulled:            d.metrics.Pulled,
		Policy:            pullPolicy{d.policy},
	})
	d.stored.SetDiscard(cfg.Image.DiscardBlobs)
	d.preload = image.NewPreload(d.images, image.PreloadConfig{
		Dir:    cfg.Image.PreloadDir,
		Memory: filepath.Join(cfg.Root, "preload.json"),
		Ready:  func(ctx context.Context) error { return d.core.Await(ctx) },
	})
	if err := d.openNetwork(); err != nil {
		return err
	}
	if d.kernel, err = pidfd.New(d.kept, inherited); err != nil {
		return err
	}
	if d.ooms, err = cgroup.NewOOMWatch(); err != nil {
		d.log.Warn("the kernel cannot notify of OOM kills: they are counted when a container ends", "err", err)
	} else {
		d.undo = append(d.undo, d.ooms.Close)
	}
	if d.host, err = d.openHost(); err != nil {
		return err
	}
	d.publish()
	if err := d.openPods(); err != nil {
		return err
	}
	if err := d.openStreams(); err != nil {
		return err
	}
	d.openCRI()
	return nil
}

// panickedOverImage counts a panic over an image.
func (d *daemon) panickedOverImage() { d.metrics.Panicked("image") }

// trust waits for layers that are doubted after an unclean boot.
func (d *daemon) trust(ctx context.Context, snapshotter, chainID string) error {
	return d.stored.Trust(ctx, snapshotter, chainID)
}

// imageChanged takes note of an image event of containerd.
func (d *daemon) imageChanged(name string) {
	d.images.Changed(name)
	d.stored.MayHaveChanged()
}

// keepDurable keeps a power cut from making images wrong, once containerd is there.
func (d *daemon) keepDurable(ctx context.Context) error {
	if d.core.Await(ctx) != nil {
		return nil // ctx has ended
	}
	return d.stored.KeepDurable(ctx)
}

// unpacks returns how many layers of an image are unpacked at the same time. Another containerd
// unpacks itself, layer by layer.
func (d *daemon) unpacks() int {
	if !d.embeds() {
		return 1
	}
	return d.cfg.Image.MaxConcurrentUnpacks
}

// openListener takes or opens the CRI socket before anything that may take long: calls wait in its
// backlog until they are served.
func (d *daemon) openListener(from passed) (err error) {
	if d.lis, err = from.listen(d.cfg.Address, d.kept, d.log.Logger); err != nil {
		return err
	}
	d.undo = append(d.undo, func() error {
		if err := d.lis.Close(); !errors.Is(err, net.ErrClosed) { // the server has closed it if it has served
			return err
		}
		return nil
	})
	d.also = from.listenAlso(d.cfg.CRI.Sockets, d.kept, d.log.Logger)
	d.undo = append(d.undo, func() error {
		for _, lis := range d.also {
			_ = lis.Close() // most often the server has closed it
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
	if g, err := cgroup.NewGroups("cni-"+d.store.Owner(), network.Grace); err != nil {
		d.log.Warn("CNI plug-ins run without cgroups of their own: what a call leaves that is cut off is not ended", "err", err)
	} else {
		groups = pluginGroups{g}
	}
	var err error
	if d.netns, err = pins.NewNetworks(n.NetNSDir, d.store.Owner()); err != nil {
		return err
	}
	d.network, err = network.New(network.Config{
		ConfDir:  n.ConfDir,
		BinDirs:  append(append([]string(nil), n.BinDirs...), cniDirs(d.libexec)...),
		CacheDir: filepath.Join(d.cfg.Root, "cni"),
		Default:  def,
		Handlers: handlerNetworks(d.cfg.Runtimes),
		Groups:   groups,
		Logger:   d.log.Logger,
	})
	return err
}

// openPods makes the controller, what takes part in the life of pods, and what works on pods.
func (d *daemon) openPods() (err error) {
	d.probe = probe.New(probe.Config{
		Handlers:          d.host.handlers,
		Snapshotter:       d.cfg.Containerd.Snapshotter,
		RecursiveReadOnly: d.host.RecursiveReadOnly,
		MapsOwners: func(ctx context.Context, snapshotter string) (bool, error) {
			return imagestore.MapsOwners(ctx, d.conn, snapshotter)
		},
		SandboxShim: d.ctrd.SandboxShim,
		Logger:      d.log.Logger,
	})
	d.devices = cdi.Open(d.cfg.CDI.SpecDirs)
	if d.plugins, err = d.openPlugins(); err != nil {
		return err
	}
	d.openCAdvisor()
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
		Sweep:         d.stored.Sweep,
		ImageChanged:  d.imageChanged,
		RefreshImages: d.images.Refresh,
		Recorder:      d.recorder,
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
		Mountpoint: d.images.Mountpoint,
		Cgroups:    "/sys/fs/cgroup",
		Unified:    cgroup.V2(),
		Logger:     d.log.Logger,
	})
	return nil
}

// openCRI makes the server of CRI, which is served once the parts below it run.
func (d *daemon) openCRI() {
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
			Streams:     streams{d.server, d.streams},
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
}

// serve serves CRI once the records are restored, until stop ends, and then lets calls in flight
// finish.
func (d *daemon) serve(stop context.Context, ready func()) error {
	if !d.restored(stop) {
		return nil
	}
	// Most often containerd is there in a moment: a kubelet need not see a node that is not ready.
	grace, cancel := context.WithTimeout(stop, containerdGrace)
	err := d.core.Await(grace)
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
	ready()
	if err := d.cri.Serve(d.lis); err != nil && stop.Err() == nil {
		return fmt.Errorf("serve %s: %w", d.cfg.Address, err)
	}
	return nil
}
