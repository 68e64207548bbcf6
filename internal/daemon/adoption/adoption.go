// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"berth/internal/base/clock"
	"berth/internal/base/config"
	"berth/internal/base/connection"
	"berth/internal/engine/adopt"
	"berth/internal/engine/ctrd"
	"berth/internal/engine/layers"
	"berth/internal/heart/state"
	"berth/internal/host/kernelclock"
	"berth/internal/host/pidfd"
	"berth/internal/host/podfiles"
)

// Run takes over the pods of containerd's CRI plug-in, or gives them back, as the request says.
// Errors are sentences for the operator. Berth's directories exist, unless it is a dry run.
func Run(ctx context.Context, cfg config.Config, r adopt.Request) error {
	return run(ctx, cfg, r, answerTimeout)
}

func run(ctx context.Context, cfg config.Config, r adopt.Request, patience time.Duration) (err error) {
	if cfg.Containerd.Address == "" {
		return errors.New("containerd runs inside berth: pods can be adopted where berth uses the node's containerd, which containerd.address names")
	}
	conn, err := connection.Dial(cfg.Containerd.Address)
	if err != nil {
		return err
	}
	defer conn.Close()
	recs, err := openRecords(cfg.Root, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, recs.close()) }()
	// What of it cannot be read or written, berth says when it serves.
	clk, _ := clock.Open(clock.Path(cfg.Root), kernelclock.Open())
	n := &node{
		cfg:      cfg,
		clock:    clk,
		request:  r,
		ctrd:     ctrd.NewAdoption(conn, recs.owner, clk),
		files:    podfiles.New(cfg.Root, cfg.State),
		patience: patience,
		shifts: func(ctx context.Context, snapshotter string) (bool, error) {
			return layers.MapsOwners(connection.Asking(ctx), conn, snapshotter)
		},
	}
	if err := n.reach(ctx); err != nil {
		return err
	}
	if n.containerd, err = n.meets(ctx, recs.units()); err != nil {
		return err
	}
	out := newOutputs(n)
	defer out.release()
	if r.Back {
		return (&giving{node: n, records: recs, outputs: out}).run(ctx)
	}
	return (&taking{node: n, records: recs, outputs: out}).run(ctx)
}

// node is where pods are adopted: a containerd, and the settings of a berth.
type node struct {
	cfg     config.Config
	request adopt.Request
	clock   *clock.Clock
	ctrd    *ctrd.Adoption
	files   *podfiles.Files
	// shifts reports whether a snapshotter shifts the owners of files.
	shifts func(ctx context.Context, snapshotter string) (bool, error)
	// patience is how long shims may take to answer, and the ends of logs to be written.
	patience time.Duration
	// containerd is which one it is, as the records are to name it.
	containerd state.Containerd
}

// meets returns which containerd it is that has answered. The error says that what is on record is
// another's: this one knows nothing of it, and berth would take that for gone, whichever way pods
// go.
func (n *node) meets(ctx context.Context, units int) (is state.Containerd, err error) {
	was, err := state.ReadContainerd(n.cfg.Root)
	switch {
	case errdefs.IsDataLoss(err):
		n.said("it is not known whether this is the containerd that has the pods on record: %v", err)
	case err != nil:
		return is, fmt.Errorf("%w; nothing was changed", err)
	}
	if is.Boot, err = pidfd.BootID(); err != nil {
		return is, fmt.Errorf("it is not known whether the pods on record are of an earlier boot: %w; nothing was changed", err)
	}
	if is.UUID, err = n.ctrd.UUID(ctx); err != nil {
		return is, err
	}
	if err := was.Meets(is, n.cfg.Root, units); err != nil {
		return is, fmt.Errorf("containerd at %s is not the one that has the pods: %w; nothing was changed", n.cfg.Containerd.Address, err)
	}
	return is, nil
}

// note puts on record which containerd has the pods, before the first of them has another owner.
func (n *node) note() error {
	if n.containerd.UUID == "" {
		return nil
	}
	return n.containerd.Note(n.cfg.Root)
}

// said tells the operator what happens, in a sentence.
func (n *node) said(format string, args ...any) { n.request.Said(format, args...) }

// atOnce is how many pods, or objects, are changed at the same time. Each waits for the disk, of
// the records and of containerd.
const atOnce = 16

// move moves pods one way, side by side. Those that are under way when one of them fails are moved
// to the end.
func move(ctx context.Context, o adopt.Outside, recs *records, ids []string, to adopt.Direction) error {
	return each(ctx, ids, func(ctx context.Context, id string) error {
		return adopt.Move(ctx, o, id, recs.ownerOf(id), to)
	})
}

// each does something with IDs, side by side. What is under way when one of them fails is done to
// the end, and the others are not begun, as after an interruption by the operator.
func each(ctx context.Context, ids []string, do func(ctx context.Context, id string) error) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, id := range ids {
		g.Go(func() error {
			if gctx.Err() != nil {
				return gctx.Err()
			}
			return do(ctx, id)
		})
	}
	return g.Wait()
}
