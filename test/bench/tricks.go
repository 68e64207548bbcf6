// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// trick is one of docs/tricks.md.
type trick struct {
	setting string // KEY=VALUE that turns it off
	on      string // KEY=VALUE that turns it on; "": it is on
	// prepare prepares a daemon without it where a setting alone does not; nil: it does.
	prepare func(n *node) ([]string, error)
	// do measures the operation that the trick speeds up, or its cost.
	do func(n *node, ctx context.Context, s sizes, rec record) error
}

var tricks = []trick{
	{"pod.pause=always", "", nil, (*node).livesAndMemory},
	{"tricks.cleanup_script=false", "", nil, (*node).bothLives},
	{"tricks.keep_output=false", "", nil, (*node).bothLives},
	{"tricks.spare_threads=false", "", nil, func(n *node, ctx context.Context, s sizes, rec record) error {
		return n.exitsWhilePulling(ctx, s.Kills, rec)
	}},
	{"tricks.write_early=false", "", nil, func(n *node, ctx context.Context, s sizes, rec record) error {
		return errors.Join(n.exitsWhilePulling(ctx, s.Kills, rec), n.pulls(ctx, s.Pulls, s.PullMiB, rec))
	}},
	{"containerd.sync_layers=true", "", nil, func(n *node, ctx context.Context, s sizes, rec record) error {
		return n.besideAWriter(ctx, s.Kills, rec)
	}},
	{"image.max_concurrent_unpacks=1", "", nil, func(n *node, ctx context.Context, s sizes, rec record) error {
		return n.pulls(ctx, s.Pulls, s.PullMiB, rec)
	}},
	{"tricks.set_aside=false", "", nil, func(n *node, ctx context.Context, s sizes, rec record) error {
		return n.hanging(ctx, s.Total, rec)
	}},
	{"containerd.address=SOCKET", "", beside, (*node).livesAndMemory},
	{"runtimes.runc.exec=oci", "", nil, func(n *node, ctx context.Context, s sizes, rec record) error {
		return n.execs(ctx, s.Execs, rec)
	}},
	{"runtimes.runc.start=oci", "", nil, (*node).bothLives},
	{"runtimes.runc.shim_pods=1", "runtimes.runc.shim_pods=50", nil, (*node).sharedShims},
	{"tricks.encode_once=false", "", nil, func(n *node, ctx context.Context, s sizes, rec record) error {
		if _, err := n.fill(ctx, s.Pods, s.Crowd/s.Pods); err != nil {
			return err
		}
		return n.rawLists(ctx, s.Lists, s.Crowd, rec)
	}},
}

// bothLives measures the life of pods, with pauses and without.
func (n *node) bothLives(ctx context.Context, s sizes, rec record) error {
	if err := n.lives(ctx, s.Lives, rec); err != nil {
		return err
	}
	return n.wholeLives(ctx, s.Lives, rec)
}

// livesAndMemory measures the memory of pods without containers, too.
func (n *node) livesAndMemory(ctx context.Context, s sizes, rec record) error {
	if err := n.bothLives(ctx, s, rec); err != nil {
		return err
	}
	if _, err := n.pods(ctx, s.AtOnce, 4, ""); err != nil {
		return err
	}
	return n.weigh("Memory", true, rec)
}

// sharedShims measures the life of pods, and the memory and the ends of 50 pods with a container
// each.
func (n *node) sharedShims(ctx context.Context, s sizes, rec record) error {
	if err := n.bothLives(ctx, s, rec); err != nil {
		return err
	}
	pods, err := n.pods(ctx, 50, 4, "")
	if err != nil {
		return err
	}
	if err := parallel(4, pods, func(_ int, p pod) error {
		_, err := n.victim(ctx, p, "c")
		return err
	}); err != nil {
		return err
	}
	if err := n.weigh("Memory/pods=50", true, rec); err != nil {
		return err
	}
	return n.exits(ctx, s.Kills, killToExited, rec, nil, n.exited)
}

// few is less of everything, so that each trick can be turned on and off more often.
var few = sizes{
	Kills: 8, Lives: 6, Pods: 10, Lists: 40, AtOnce: 10, Total: 30, Pulls: 2, PullMiB: 100, Crowd: 600, Execs: 34,
}

// hanging measures the restart of a daemon with so many pods, and then another one while the shim
// of one of them hangs.
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

// besideAWriter measures the life of pods while a container of another one writes to its layer on
// the same disk.
func (n *node) besideAWriter(ctx context.Context, count int, rec record) error {
	pods, err := n.pods(ctx, 1, 1, "")
	if err != nil {
		return err
	}
	id, err := n.create(ctx, pods[0], containerConfig("c", "sh", "-c", "while dd if=/dev/zero of=/file bs=1M count=64; do sleep 0.1; done"))
	if err != nil {
		return err
	}
	if err := n.startContainer(ctx, id); err != nil {
		return err
	}
	for range count {
		if err := rec.time("LifeBesideAWriter", func() error { return n.life(ctx, sleeper...) }); err != nil {
			return err
		}
	}
	return nil
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

// beside prepares a berth that uses a containerd beside it, and starts that one.
func beside(n *node) ([]string, error) {
	command, err := prepareContainerd(n)
	if err != nil {
		return nil, err
	}
	address, config := n.socket, command[len(command)-1]
	b, err := os.ReadFile(config)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(config, append([]byte("disabled_plugins = ['io.containerd.grpc.v1.cri']\n"), b...), 0o600); err != nil {
		return nil, err
	}
	n.beside = exec.Command(command[0], command[1:]...)
	if err := n.beside.Start(); err != nil {
		return nil, err
	}
	if err := n.account.take(n.beside.Process.Pid); err != nil {
		return nil, err
	}
	command, err = prepareBerth(n)
	return append(command, "--set", "containerd.address="+address), err
}

// runTricks measures each trick, or those whose setting contains b.only. In each round it is once
// on and once off, by turns in another order.
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
				if is == "on" && t.on != "" {
					k = with(k, t.on)
				}
				if is == "off" {
					k = with(k, t.setting)
				}
				if is == "off" && t.prepare != nil {
					k = kind{name: k.name, prepare: t.prepare}
				}
				measure := step{key, func(ctx context.Context, n *node, rec record) error { return t.do(n, ctx, s, rec) }, false}
				if err := b.measure(ctx, k, fmt.Sprintf("round %d of %d, %s", i+1, b.rounds, is), fmt.Sprintf("/of=%s/trick=%s", key, is), []step{measure}); err != nil {
					return err
				}
			}
		}
		slices.Reverse(order)
	}
	return nil
}
