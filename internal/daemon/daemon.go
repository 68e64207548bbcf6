// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"berth/internal/base/asynclog"
	"berth/internal/base/config"
	"berth/internal/base/connection"
	"berth/internal/base/processors"
	"berth/internal/engine/ctrd"
	"berth/internal/engine/embed"
	"berth/internal/engine/probe"
	"berth/internal/engine/shims"
	"berth/internal/heart/state"
	"berth/internal/history/observe"
	"berth/internal/history/recorder"
	"berth/internal/host/cdi"
	"berth/internal/host/cgroup"
	"berth/internal/host/fdstore"
	"berth/internal/host/network"
	"berth/internal/host/pidfd"
	"berth/internal/host/pins"
	"berth/internal/images/image"
	"berth/internal/images/imagestore"
	"berth/internal/images/peer"
	"berth/internal/images/policy"
	"berth/internal/serve/access"
	"berth/internal/serve/cadvisor"
	"berth/internal/serve/checkpoint"
	"berth/internal/serve/cri"
	"berth/internal/serve/stats"
	"berth/internal/serve/stream"
)

// Serve runs berth until ctx ends. What comes from changes takes the place of cfg, which differs
// from it in settings that need no restart. ready is called once berth serves. The caller runs the
// log, and goes on running it until Serve has returned. The error says why berth could not start,
// or what broke.
func Serve(ctx context.Context, cfg config.Config, changes <-chan config.Config, ready func(), log *asynclog.Log) error {
	observe.BridgeLibraries(log.Logger)
	boundGarbage()
	if cfg.Tricks.SpareThreads {
		processors.Spare()
	}
	d := &daemon{cfg: cfg, log: log, metrics: observe.NewMetrics(), link: newLink()}
	d.settings.Store(&cfg)
	defer d.close()
	if err := d.open(ctx); err != nil {
		return err
	}
	return d.run(ctx, changes, ready)
}

// mostGarbage is how much garbage berth may have, in percent of what it needs. It is half of what Go
// allows otherwise. A node pays for memory all the time, and for collecting it only while pods come
// and go: with 50 pods it is 4.5 MiB of 69, and the processor time of a pod's life did not grow by
// more than what differs from run to run (171 ms to 176).
const mostGarbage = 50

// boundGarbage sets that, unless GOGC in the environment says otherwise.
func boundGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(mostGarbage)
	}
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

	passed    passed         // listeners of the service manager or an earlier berth
	inherited map[string]int // descriptors that an earlier berth has left
	lis       net.Listener
	also      []net.Listener // of cri.sockets

	link     *link // whether containerd is there
	conn     *connection.Connection
	embedded atomic.Pointer[embed.Server] // nil until it runs, and where another containerd is configured
	ctrd     *ctrd.Containerd
	shims    *shims.Shims
	noting   sync.Mutex // held while the record of which containerd has the pods changes
	stored   *imagestore.Store
	images   *image.Service
	preload  *image.Preload
	policy   *policy.Guard
	peers    *peer.Server     // nil: nothing is served to peers
	asks     imagestore.Peers // nil: no peer is asked

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

// open opens everything, and stops at the first error.
func (d *daemon) open(ctx context.Context) error {
	for _, open := range d.opened(ctx) {
		if err := open(); err != nil {
			return err
		}
	}
	return nil
}

func (d *daemon) close() {
	for i := len(d.undo) - 1; i >= 0; i-- {
		if err := d.undo[i](); err != nil {
			d.log.Warn("stop", "err", err)
		}
	}
}

// opened returns the table of everything that is opened before anything runs, in the order in which
// one thing needs another.
func (d *daemon) opened(ctx context.Context) []func() error {
	return []func() error{
		d.openDescriptors,
		d.openDirs,
		d.openRecords, // refuses to start beside another berth
		d.openRecorder,
		d.openListener, // calls wait in its backlog until they are served
		func() error { return d.openTracing(ctx) },

		d.openContainerd,
		d.openPeers,
		d.openImageStore,
		d.openAdapter,
		d.openPolicy,
		d.openImages,

		d.openNetwork,
		d.openWitnesses,
		d.openHost,
		d.openProbe,
		d.openPlugins,
		d.openCAdvisor,

		d.openCore,
		d.openCheckpoints,
		d.openStats,
		d.openAccess,
		d.openStreams,
		d.openCRI,
	}
}

// openDescriptors takes what the service manager, or an earlier berth, has left open.
func (d *daemon) openDescriptors() (err error) {
	d.passed, d.inherited = takePassed()
	d.kept, err = fdstore.Open(d.log.Logger)
	return err
}

// openDirs finds the programs that berth brings along, and makes its own directories.
func (d *daemon) openDirs() (err error) {
	if d.libexec, err = findLibexec(d.cfg.Libexec); err != nil {
		return err
	}
	return errors.Join(makeDir(d.cfg.Root, rootMode), makeDir(d.cfg.State, stateMode))
}

// openRecords opens the records.
func (d *daemon) openRecords() (err error) {
	if d.store, err = state.Open(d.cfg.Root); err != nil {
		return err
	}
	d.undo = append(d.undo, d.store.Close)
	return nil
}

// openTracing begins to send traces, if that is configured.
func (d *daemon) openTracing(ctx context.Context) (err error) {
	d.tracing, err = observe.NewTracing(ctx, d.cfg.Tracing)
	if d.tracing != nil {
		d.undo = append(d.undo, d.tracing.Close)
	}
	return err
}
