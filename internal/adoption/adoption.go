// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"berth/internal/adopt"
	"berth/internal/config"
	"berth/internal/connection"
	"berth/internal/ctrd"
	"berth/internal/podfiles"
)

// Run takes over the pods of containerd's CRI plug-in, or gives them back, as the request says. Errors
// are sentences for the operator. Berth's directories exist, unless it is a dry run.
func Run(ctx context.Context, cfg config.Config, r adopt.Request) (err error) {
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
	n := &node{
		cfg:     cfg,
		request: r,
		ctrd:    ctrd.NewAdoption(conn, recs.owner),
		files:   podfiles.New(cfg.Root, cfg.State),
	}
	if err := n.reach(ctx); err != nil {
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
	ctrd    *ctrd.Adoption
	files   *podfiles.Files
}

// said tells the operator what happens, in a sentence.
func (n *node) said(format string, args ...any) { n.request.Said(format, args...) }

// atOnce is how many pods, or objects, are changed at the same time. Each waits for the disk, of the
// records and of containerd.
const atOnce = 16

// move moves pods one way, side by side. Those that are under way when one of them fails are moved to
// the end.
func move(ctx context.Context, o adopt.Outside, recs *records, ids []string, to adopt.Direction) error {
	return each(ctx, ids, func(ctx context.Context, id string) error {
		return adopt.Move(ctx, o, id, recs.ownerOf(id), to)
	})
}

// each does something with IDs, side by side. What is under way when one of them fails is done to the
// end, and the others are not begun, as after an interruption by the operator.
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
