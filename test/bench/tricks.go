// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// trick is one of docs/tricks.md.
type trick struct {
	setting string // KEY=VALUE that turns it off
	// do measures what the trick speeds up, or what it costs.
	do func(ctx context.Context, n *node, s sizes, rec record) error
}

var tricks = []trick{
	{"pod.pause=always", func(ctx context.Context, n *node, s sizes, rec record) error {
		if err := both(n.lives, n.wholeLives)(ctx, s.Lives, rec); err != nil {
			return err
		}
		if _, err := n.pods(ctx, s.AtOnce, 4, ""); err != nil {
			return err
		}
		return n.weigh("Memory", true, rec)
	}},
	{"tricks.cleanup_script=false", func(ctx context.Context, n *node, s sizes, rec record) error {
		return both(n.lives, n.wholeLives)(ctx, s.Lives, rec)
	}},
	{"tricks.keep_output=false", func(ctx context.Context, n *node, s sizes, rec record) error {
		return both(n.lives, n.wholeLives)(ctx, s.Lives, rec)
	}},
	{"containerd.sync_layers=true", func(ctx context.Context, n *node, s sizes, rec record) error {
		for range s.Pulls {
			if err := rec.time("LifeThatWrites32MiB", func() error { return n.writes(ctx) }); err != nil {
				return err
			}
		}
		return nil
	}},
	{"image.max_concurrent_unpacks=1", func(ctx context.Context, n *node, s sizes, rec record) error {
		return n.pulls(ctx, s.Pulls, s.PullMiB, rec)
	}},
	{"tricks.spare_threads=false", func(ctx context.Context, n *node, s sizes, rec record) error {
		return n.exitsWhilePulling(ctx, s.Kills, rec)
	}},
	{"tricks.set_aside=false", func(ctx context.Context, n *node, s sizes, rec record) error {
		return n.hanging(ctx, s.Total, rec)
	}},
	{"tricks.encode_once=false", func(ctx context.Context, n *node, s sizes, rec record) error {
		if _, err := n.fill(ctx, s.Pods, s.Crowd/s.Pods); err != nil {
			return err
		}
		return n.rawLists(ctx, s.Lists, s.Crowd, rec)
	}},
}

func both(first, second func(context.Context, int, record) error) func(context.Context, int, record) error {
	return func(ctx context.Context, count int, rec record) error {
		if err := first(ctx, count, rec); err != nil {
			return err
		}
		return second(ctx, count, rec)
	}
}

// few is less of everything, so that each trick can be turned on and off more often.
var few = sizes{
	Kills: 8, Lives: 6, Pods: 10, Lists: 40, AtOnce: 10, Total: 30, Pulls: 2, PullMiB: 100, Crowd: 600,
}

// hanging measures the restart of a daemon with so many pods, and then another one while the shim of
// one of them hangs.
func (n *node) hanging(ctx context.Context, total int, rec record) error {
	pods, err := n.pods(ctx, total, 4, "")
	if err != nil {
		return err
	}
	victims := make([]victim, total)
	if err := parallel(4, pods, func(i int, p pod) (err error) {
		victims[i], err = n.victim(ctx, p, "c")
		return err
	}); err != nil {
		return err
	}
	if err := n.nextPod(ctx, total, fmt.Sprintf("KillToNextPod/pods=%d", total), rec); err != nil {
		return err
	}
	shim, err := parent(victims[0].pid)
	if err != nil {
		return err
	}
	if err := syscall.Kill(shim, syscall.SIGSTOP); err != nil {
		return err
	}
	defer func() { _ = syscall.Kill(shim, syscall.SIGCONT) }()
	return n.nextPod(ctx, total, fmt.Sprintf("KillToNextPod/pods=%d/oneShimHangs", total), rec)
}

// nextPod kills the daemon and measures the time from the start of the new one until a pod has been
// made, which needs containerd, and how many of the containers are lost.
func (n *node) nextPod(ctx context.Context, total int, name string, rec record) error {
	if err := n.end(syscall.SIGKILL); err != nil {
		return err
	}
	began := time.Now()
	if _, err := n.start(ctx, nil); err != nil {
		return err
	}
	for {
		p, err := n.run(ctx, n.podConfig(), "")
		if err == nil {
			rec.line(name, time.Since(began), "ns/op", total-running(ctx, n.Client), "lost/op")
			return cmp.Or(n.stopPod(ctx, p.id), n.removePod(ctx, p.id))
		}
		if ctx.Err() != nil || time.Since(began) > bound {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// parent returns the parent of a process.
func parent(pid int) (ppid int, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), "\nPPid:")
	_, err = fmt.Sscan(rest, &ppid)
	return ppid, err
}

// writes runs a pod whose container has written to its layer, and removes it.
func (n *node) writes(ctx context.Context) error {
	cfg := n.podConfig()
	p, err := n.run(ctx, cfg, "")
	if err != nil {
		return err
	}
	id, err := n.create(ctx, p, containerConfig("c", "sh", "-c", "dd if=/dev/zero of=/file bs=1M count=32; echo ready; sleep 1000000"))
	if err == nil {
		err = n.startContainer(ctx, id)
	}
	if err == nil {
		err = n.says(ctx, cfg.GetLogDirectory()+"/c.log", "ready")
	}
	if err != nil {
		return err
	}
	if err := n.stopContainer(ctx, id, 0); err != nil {
		return err
	}
	if err := n.removeContainer(ctx, id); err != nil {
		return err
	}
	if err := n.stopPod(ctx, p.id); err != nil {
		return err
	}
	return n.removePod(ctx, p.id)
}

// runTricks measures each trick, or those whose setting contains b.only. In each round it is once on
// and once off, by turns in another order.
func (b *bench) runTricks(ctx context.Context) error {
	stop, err := b.serve(b.sizes.PullMiB)
	if err != nil {
		return err
	}
	defer stop()
	only := b.only
	b.only = ""
	s := b.sizes
	if s == full {
		s = few
	}
	order := []string{"on", "off"}
	for i := range b.rounds {
		for _, t := range tricks {
			key, _, _ := strings.Cut(t.setting, "=")
			if !strings.Contains(key, only) {
				continue
			}
			for _, is := range order {
				k := kinds[0]
				if is == "off" {
					k = with(k, t.setting)
				}
				measure := step{key, func(ctx context.Context, n *node, rec record) error { return t.do(ctx, n, s, rec) }, false}
				if err := b.measure(ctx, k, fmt.Sprintf("round %d of %d, %s", i+1, b.rounds, is), fmt.Sprintf("/of=%s/trick=%s", key, is), []step{measure}); err != nil {
					return err
				}
			}
		}
		slices.Reverse(order)
	}
	return nil
}
