// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/connection"
	"berth/internal/base/retry"
	"berth/internal/engine/ctrd"
	"berth/internal/engine/embed"
	"berth/internal/engine/shims"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/internal/host/pidfd"
)

const (
	// containerdGrace is how long CRI is not served, at most, so that containerd is there when it
	// is.
	containerdGrace = 400 * time.Millisecond
	// containerdPatience is how long a call that makes something waits for containerd.
	containerdPatience = 2 * time.Second
)

// embeds reports whether containerd runs in this process.
func (d *daemon) embeds() bool { return d.cfg.Containerd.Address == "" }

func (d *daemon) embedConfig() embed.Config {
	return embed.Config{
		Root:        filepath.Join(d.cfg.Root, "containerd"),
		State:       filepath.Join(d.cfg.State, "containerd"),
		SocketDir:   filepath.Join(d.cfg.State, "s"),
		Snapshotter: d.cfg.Containerd.Snapshotter,
		Libexec:     d.libexec,
		LeaveTasks:  !d.cfg.Tricks.SetAside,
		Program:     d.programAgain,
		WriteLate:   !d.cfg.Tricks.WriteEarly,
		Debug:       d.cfg.Log.Level == "debug",
		Logger:      d.log.With("from", "containerd"),
	}
}

// openContainerd makes the connection to containerd, which is not there yet, and waits for nothing.
// The error says that the configuration cannot work.
func (d *daemon) openContainerd() (err error) {
	if address := d.cfg.Containerd.Address; address != "" {
		embed.BridgeLog(d.log.Logger, false)
		if d.conn, err = connection.Dial(address); err != nil {
			return err
		}
		d.undo = append(d.undo, d.conn.Close)
		return nil
	}
	if err := d.embedConfig().Check(); err != nil {
		return err
	}
	d.conn = connection.Absent(errors.New("the containerd inside berth is starting"))
	d.undo = append(d.undo, func() error {
		if s := d.embedded.Load(); s != nil {
			return s.Stop()
		}
		return nil
	})
	return nil
}

// openAdapter makes the adapter of tasks and objects, and what knows the shims of this node.
func (d *daemon) openAdapter() error {
	cfg := d.cfg
	adapter := ctrd.Config{
		Owner:          d.store.Owner(),
		Snapshotter:    cfg.Containerd.Snapshotter,
		Snapshotters:   handlerSnapshotters(cfg.Runtimes),
		UnsyncedLayers: !cfg.Containerd.SyncLayers,
		Trust:          d.stored.Trust,
		Measured:       d.stored.Measured,
		Runs: func(id string) bool {
			answer, watched := d.kernel.Look(id)
			return watched && answer == pidfd.Alive
		},
		Logger: d.log.Logger,
	}
	node := shims.Config{
		StateDir: filepath.Dir(strings.TrimPrefix(cfg.Containerd.Address, "unix://")), // unless it is configured otherwise
		Learned:  d.noteStateDir,
		Logger:   d.log.Logger,
	}
	if cfg.Tricks.CleanupScript {
		node.CleanupDir = filepath.Join(cfg.Root, "cleanup")
	}
	if d.embeds() {
		adapter.SetAside, node.StateDir = d.setAside, d.embedConfig().State
	}
	d.shims = shims.New(node)
	adapter.Shims = d.shims
	d.ctrd = ctrd.New(d.conn, adapter)
	return nil
}

// runEmbedded starts containerd in this process. It returns an error when a containerd that was
// started breaks.
func (d *daemon) runEmbedded(ctx context.Context) error {
	if !d.embeds() {
		return nil
	}
	s := d.startEmbedded(ctx)
	if s == nil {
		return nil // ctx has ended
	}
	d.embedded.Store(s)
	d.publish() // the directories of layers are there from now on, and no layer was added yet
	d.conn.Use(s.Client())
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

// The wait between two attempts to start the containerd in this process.
const (
	firstEmbed   = time.Second
	slowestEmbed = 30 * time.Second
)

// startEmbedded starts containerd in this process, and tries again when that fails: a disk may be
// full, and another process may use its directory. berth serves from the records meanwhile, and
// Status has the reason. It returns nil when ctx has ended.
func (d *daemon) startEmbedded(ctx context.Context) *embed.Server {
	for wait := range retry.Doubling(ctx.Done(), firstEmbed, slowestEmbed) {
		s, err := embed.Start(ctx, d.embedConfig())
		if err == nil {
			return s
		}
		if ctx.Err() != nil {
			return nil
		}
		d.conn.Set(err)
		d.log.Error("the containerd inside berth does not start; trying again", "err", err, "wait", wait)
	}
	return nil
}

// setAside reports whether a task is there although the containerd in this process does not know
// it.
func (d *daemon) setAside(ctx context.Context, id string) bool {
	s := d.embedded.Load()
	return s != nil && s.SetAside(ctx, id)
}

// programAgain is the Program of the containerd in this process.
func (d *daemon) programAgain(ctx context.Context, pod string, shim int, kind string, options typeurl.Any) string {
	return d.ctrd.ProgramAgain(ctx, pod, shim, kind, options)
}

// away returns nil while berth is connected to containerd, and otherwise ErrUnavailable with the
// reason.
func (d *daemon) away() error {
	why := d.link.get()
	if why == nil {
		return nil
	}
	if closed := d.conn.Err(); closed != nil {
		return closed // it knows more
	}
	return fmt.Errorf("%w: %w", why, errdefs.ErrUnavailable)
}

// reach waits a little for containerd, for a call that needs it. Without containerd it returns
// ErrUnavailable, with the reason, and the client tries again.
func (d *daemon) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, containerdPatience)
	defer cancel()
	if d.link.await(ctx) == nil {
		return nil
	}
	return d.away()
}

// meets notes which containerd berth works with. Another one has nothing of what is on record, and
// berth would take that for gone, and leave it behind: it is not used before all pods are removed.
// After a reboot nothing of them runs, and any is used; what the one before has of them, such as
// layers and container objects, stays in its directory, and goes when berth works with it again.
// Where the record cannot be read, nobody knows, and berth, which asks again within a second, works
// with none meanwhile. Where the record is damaged, or a containerd has no UUID, that keeps berth
// from none.
func (d *daemon) meets(uuid string, units int) error {
	d.noting.Lock()
	defer d.noting.Unlock()
	was, err := state.ReadContainerd(d.cfg.Root)
	switch {
	case err != nil && !errdefs.IsDataLoss(err) && units > 0:
		return fmt.Errorf("it is not known whether this is the containerd that has the %d pods and containers on record: %w: %w", units, err, errdefs.ErrUnavailable)
	case err != nil:
		d.log.Warn("it is not known whether this is the containerd that has the pods", "err", err)
	}
	boot, err := pidfd.BootID()
	if err != nil {
		d.log.Warn("it is not known whether the pods are of an earlier boot", "err", err)
		boot = was.Boot
	}
	is := state.Containerd{UUID: uuid, Boot: boot}
	if uuid == was.UUID {
		is.StateDir = was.StateDir
	}
	if uuid == "" || is == was {
		d.shims.Learn(is.StateDir)
		return nil
	}
	if err := was.Meets(is, d.cfg.Root, units); err != nil {
		return fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	}
	if err := is.Note(d.cfg.Root); err != nil {
		d.log.Warn("berth will not notice if another containerd takes the place of this one", "err", err)
	}
	d.shims.Learn(is.StateDir)
	return nil
}

// noteStateDir puts the state directory of the containerd that berth works with on record, so that
// the next berth finds what is left of a pod whose shim has ended meanwhile.
func (d *daemon) noteStateDir(dir string) {
	d.noting.Lock()
	defer d.noting.Unlock()
	is, err := state.ReadContainerd(d.cfg.Root)
	if is.StateDir = dir; err == nil && is.UUID != "" {
		err = is.Note(d.cfg.Root)
	}
	if err != nil {
		d.log.Warn("the state directory of containerd is not on record", "dir", dir, "err", err)
	}
}

// makeable waits as reach does, for a call that makes a pod or a container, and also for the NRI
// plug-ins that berth starts, once: see admitPlugins.
func (d *daemon) makeable(ctx context.Context) error {
	if err := d.reach(ctx); err != nil {
		return err
	}
	select {
	case <-d.plugins.admitted:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the NRI plug-ins that berth starts: %w", ctx.Err())
	}
}

// served is the controller as CRI calls it: what needs containerd at once is refused while there is
// none. All else is answered from the records, or waits for its lane.
type served struct {
	*pod.Controller
	d *daemon
}

// RunPodSandbox makes a sandbox.
func (s served) RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	if err := s.d.makeable(ctx); err != nil {
		return "", fmt.Errorf("run sandbox %s: %w", config.GetMetadata().GetName(), err)
	}
	return s.Controller.RunPodSandbox(ctx, config, handler)
}

// CreateContainer makes a container.
func (s served) CreateContainer(ctx context.Context, podID string, config *runtimeapi.ContainerConfig) (string, error) {
	if err := s.d.makeable(ctx); err != nil {
		return "", fmt.Errorf("create container %s: %w", config.GetMetadata().GetName(), err)
	}
	return s.Controller.CreateContainer(ctx, podID, config)
}

// StartContainer starts a container.
func (s served) StartContainer(ctx context.Context, id string) error {
	if err := s.d.makeable(ctx); err != nil {
		return fmt.Errorf("start container %s: %w", id, err)
	}
	return s.Controller.StartContainer(ctx, id)
}

// processes makes the processes of exec. Right after a start of berth it waits a little for
// containerd, so that a probe or a person does not have to ask again.
type processes struct {
	*ctrd.Containerd
	d *daemon
}

// Spec returns the specification of a container, of which a process is made.
func (p processes) Spec(ctx context.Context, id string) (*specs.Spec, error) {
	if err := p.d.reach(ctx); err != nil {
		return nil, err
	}
	return p.Containerd.Spec(ctx, id)
}
