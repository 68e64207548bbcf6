// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// bench is one run.
type bench struct {
	build    string // the module's build directory
	registry string // address of the images' registry
	sizes    sizes
	only     string // part of the title of the steps that are carried out
	setting  string // of berth's, as KEY=VALUE; "" for the defaults
	progress io.Writer
	results  *results
}

// step is a part of a round. Its pods are removed after it, unless keep is set.
type step struct {
	title string
	do    func(ctx context.Context, n *node, rec record) error
	keep  bool
}

func (b *bench) round() []step {
	s := b.sizes
	var created map[string][]string
	return []step{
		{"memory and " + num(s.Total) + " pods", func(ctx context.Context, n *node, rec record) error { return n.scale(ctx, s.AtOnce, s.Total, rec) }, false},
		{"operations", func(ctx context.Context, n *node, rec record) error {
			if err := n.lives(ctx, s.Lives, rec); err != nil {
				return err
			}
			return n.wholeLives(ctx, s.Lives, rec)
		}, false},
		{"CNI operations", func(ctx context.Context, n *node, rec record) error {
			if n.name != kinds[0].name { // the plug-ins are the same for both
				return nil
			}
			return n.plugins(ctx, s.Lives, rec)
		}, false},
		{"exec", func(ctx context.Context, n *node, rec record) error { return n.execs(ctx, s.Execs, rec) }, false},
		{"exits, polled", func(ctx context.Context, n *node, rec record) error {
			return n.polledExits(ctx, s.Kills, killToExited, rec)
		}, false},
		{"exits, announced", func(ctx context.Context, n *node, rec record) error { return n.publishedExits(ctx, s.Kills, rec) }, false},
		{"pulls", func(ctx context.Context, n *node, rec record) error { return n.pulls(ctx, s.Pulls, s.PullMiB, rec) }, false},
		{"exits while pulling", func(ctx context.Context, n *node, rec record) error { return n.exitsWhilePulling(ctx, s.Kills, rec) }, false},
		{"lists", func(ctx context.Context, n *node, rec record) (err error) {
			if created, err = n.fill(ctx, s.Pods, s.PerPod); err != nil {
				return err
			}
			return n.lists(ctx, s.Lists, s.Pods*s.PerPod, rec)
		}, true},
		{"exits at once", func(ctx context.Context, n *node, rec record) error { return n.exitsAtOnce(ctx, created, rec) }, false},
	}
}

func (b *bench) stuck() []step {
	return []step{{"exits, stuck", func(ctx context.Context, n *node, rec record) error {
		return n.stuckExits(ctx, b.sizes.Watched, b.sizes.Wedged, b.sizes.Others, rec)
	}, false}}
}

func (b *bench) crowd() []step {
	return []step{{"a full node", func(ctx context.Context, n *node, rec record) error { return n.crowd(ctx, b.sizes, rec) }, false}}
}

// run measures everything. The daemons take turns in going first.
func (b *bench) run(ctx context.Context) error {
	address, stop, err := serveImages(b.build, b.sizes.PullMiB)
	if err != nil {
		return err
	}
	defer stop()
	b.registry = address
	order := slices.Clone(kinds)
	order[0] = b.set(order[0])
	for i := range b.sizes.Rounds {
		for _, k := range order {
			if err := b.with(ctx, k, fmt.Sprintf("round %d of %d", i+1, b.sizes.Rounds), b.round()); err != nil {
				return err
			}
		}
		slices.Reverse(order)
	}
	for _, k := range order {
		if err := b.with(ctx, k, "stuck deletes", b.stuck()); err != nil {
			return err
		}
	}
	slices.Reverse(order)
	for _, k := range order {
		if err := b.with(ctx, k, "full node", b.crowd()); err != nil {
			return err
		}
	}
	return b.waterfall(ctx)
}

// set is berth with the setting that was asked for.
func (b *bench) set(k kind) kind {
	if b.setting == "" {
		return k
	}
	return kind{k.name, func(n *node) ([]string, error) {
		command, err := k.prepare(n)
		return append(command, "--set", b.setting), err
	}}
}

// with starts a daemon, carries out the steps and stops the daemon, also after an error.
func (b *bench) with(ctx context.Context, k kind, title string, steps []step) (err error) {
	n, err := newNode(k, b.build, b.registry)
	if n != nil {
		defer func() {
			if err != nil && n.cmd != nil && ctx.Err() == nil {
				err = fmt.Errorf("%w\nthe end of %s's log:\n%s", err, k.name, n.tail())
			}
			err = errors.Join(err, n.close(err != nil))
		}()
	}
	if err != nil {
		return err
	}
	if _, err := n.start(ctx, nil); err != nil {
		return err
	}
	if err := b.results.learn(ctx, n, b.setting); err != nil {
		return err
	}
	if err := n.pull(ctx); err != nil {
		return err
	}
	for _, s := range steps {
		if !strings.Contains(s.title, b.only) {
			continue
		}
		began := time.Now()
		if err := s.do(ctx, n, func(m string, v float64) { b.results.add(m, k.name, v) }); err != nil {
			return fmt.Errorf("%s, %s, %s: %w", title, k.name, s.title, err)
		}
		did := time.Since(began)
		if !s.keep {
			if err := n.removeAll(ctx, 4); err != nil {
				return fmt.Errorf("%s, %s, after %s: %w", title, k.name, s.title, err)
			}
		}
		fmt.Fprintf(b.progress, "%s  %-11s %-20s %5.1f s, removed in %4.1f s\n", title, k.name, s.title, did.Seconds(), (time.Since(began) - did).Seconds())
	}
	return nil
}

// inside makes the path of the build directory absolute, because the daemons are given paths below
// it.
func inside(build string) (string, error) {
	abs, err := filepath.Abs(build)
	if err != nil {
		return "", err
	}
	for _, f := range []string{"bin/berth", "libexec/containerd", "libexec/containerd-shim-runc-v2", "libexec/runc", "libexec/pause", "cni/bridge"} {
		if found, _ := filepath.Glob(filepath.Join(abs, f)); len(found) == 0 {
			return "", fmt.Errorf("find %s in %s: not there: run `make tools build`, or name the directory with -build", f, abs)
		}
	}
	return abs, nil
}
