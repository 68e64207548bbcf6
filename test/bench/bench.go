// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// bench is one run.
type bench struct {
	build    string // the module's build directory
	registry string // address of the images' registry
	rounds   int
	sizes    sizes
	only     string // part of the title of the steps that are carried out
	kinds    []kind // the daemons that are compared
	out      *lines
}

// sizes are how often each thing is done in a round.
type sizes struct {
	Kills           int // containers killed and polled; as many again are observed through events
	Lives           int // pods that go through their whole life
	Pods, PerPod    int // pods, filled with containers, half of which are killed at once
	Lists           int // calls of ListContainers
	Execs           int // calls of ExecSync
	AtOnce, Total   int // pods that are run at once, and all of them
	Pulls, PullMiB  int // pulls of an image with so many MiB of files
	Watched, Wedged int // containers whose own exit is measured, of those whose delete hangs
	Crowd, Running  int // containers that are made and listed, and how many of them are started
	Stats           int // calls of ListContainerStats
	OutputMB        int // megabytes that a container writes
}

var full = sizes{
	Kills: 20, Lives: 14, Pods: 10, PerPod: 20, Lists: 100, Execs: 34, AtOnce: 20, Total: 50, Pulls: 4, PullMiB: 200,
	Watched: 3, Wedged: 10, Crowd: 1500, Running: 200, Stats: 30, OutputMB: 500,
}

// quick is a little of everything, to try the bench. Its figures mean nothing.
var quick = sizes{
	Kills: 3, Lives: 2, Pods: 2, PerPod: 4, Lists: 10, Execs: 3, AtOnce: 4, Total: 6, Pulls: 1, PullMiB: 10,
	Watched: 1, Wedged: 2, Crowd: 40, Running: 8, Stats: 10, OutputMB: 10,
}

// step is a part of a round. Its pods are removed after it, unless keep is set.
type step struct {
	title string
	do    func(ctx context.Context, n *node, rec record) error
	keep  bool
}

func (b *bench) round() []step {
	s := b.sizes
	var created [][]string
	return []step{
		{"memory and pods at once", func(ctx context.Context, n *node, rec record) error { return n.scale(ctx, s.AtOnce, s.Total, rec) }, false},
		{"operations", func(ctx context.Context, n *node, rec record) error { return n.bothLives(ctx, s, rec) }, false},
		{"CNI operations", func(ctx context.Context, n *node, rec record) error {
			if n.name != kinds[0].name { // the plug-ins are the same for both
				return nil
			}
			return n.plugins(ctx, s.Lives, rec)
		}, false},
		{"exec", func(ctx context.Context, n *node, rec record) error { return n.execs(ctx, s.Execs, rec) }, false},
		{"output", func(ctx context.Context, n *node, rec record) error { return n.outputs(ctx, s.OutputMB, rec) }, false},
		{"exits, polled", func(ctx context.Context, n *node, rec record) error {
			return n.exits(ctx, s.Kills, killToExited, rec, nil, n.exited)
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
		{"exits at once", func(ctx context.Context, n *node, rec record) error { return n.exitsAtOnce(ctx, halves(created), rec) }, false},
	}
}

// stuck and crowd are measured in the last round alone, each in a node of its own.
func (b *bench) stuck() []step {
	return []step{{"exits, stuck", func(ctx context.Context, n *node, rec record) error {
		return n.stuckExits(ctx, b.sizes.Watched, b.sizes.Wedged, b.sizes.Kills, rec)
	}, false}}
}

func (b *bench) crowd() []step {
	return []step{{"a full node", func(ctx context.Context, n *node, rec record) error { return n.crowd(ctx, b.sizes, rec) }, false}}
}

func halves(created [][]string) (ids []string) {
	for _, list := range created {
		ids = append(ids, list[:len(list)/2]...)
	}
	return ids
}

// run measures everything. The daemons take turns in going first.
func (b *bench) run(ctx context.Context) error {
	stop, err := b.serve(b.sizes.PullMiB)
	if err != nil {
		return err
	}
	defer stop()
	order := slices.Clone(b.kinds)
	for i := range b.rounds {
		parts := [][]step{b.round()}
		if i == b.rounds-1 {
			parts = append(parts, b.stuck(), b.crowd())
		}
		for _, steps := range parts {
			for _, k := range order {
				if err := b.measure(ctx, k, fmt.Sprintf("round %d of %d", i+1, b.rounds), "/daemon="+k.name, steps); err != nil {
					return err
				}
			}
			slices.Reverse(order)
		}
	}
	return nil
}

// way is a daemon that is measured in one way of several, whose samples have the label.
type way struct {
	kind
	label string
}

// byTurns carries out steps in each of some ways, round after round, each time in another order.
// key names the labels.
func (b *bench) byTurns(ctx context.Context, ways []way, key string, steps ...step) error {
	order := slices.Clone(ways)
	for i := range b.rounds {
		for _, w := range order {
			if err := b.measure(ctx, w.kind, fmt.Sprintf("round %d of %d", i+1, b.rounds), "/"+key+"="+w.label, steps); err != nil {
				return err
			}
		}
		slices.Reverse(order)
	}
	return nil
}

// with is a daemon with other settings than those it ships with.
func with(k kind, settings ...string) kind {
	k.settings = settings
	return k
}

// serve serves the images to pull until stop is called.
func (b *bench) serve(mib int) (stop func(), err error) {
	b.registry, stop, err = serveImages(b.build, mib)
	return stop, err
}

// measure starts a daemon, carries out the steps and stops the daemon, also after an error.
func (b *bench) measure(ctx context.Context, k kind, title, of string, steps []step) (err error) {
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
	v, err := n.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return fmt.Errorf("ask %s for its version: %w", n.name, err)
	}
	b.out.printf("# %s: %s %s, load %s %s%s\n", title, k.name, v.GetRuntimeVersion(), load(), strings.Join(k.settings, " "), k.monitor)
	if err := n.pull(ctx); err != nil {
		return err
	}
	for _, s := range steps {
		if !strings.Contains(s.title, b.only) {
			continue
		}
		began := time.Now()
		if err := s.do(ctx, n, record{b.out, of}); err != nil {
			return fmt.Errorf("%s, %s, %s: %w", title, k.name, s.title, err)
		}
		if !s.keep {
			if err := n.removeAll(ctx, 4); err != nil {
				return fmt.Errorf("%s, %s, after %s: %w", title, k.name, s.title, err)
			}
		}
		fmt.Fprintf(os.Stderr, "%s  %-11s %-24s %5.1f s\n", title, k.name, s.title, time.Since(began).Seconds())
	}
	return nil
}
