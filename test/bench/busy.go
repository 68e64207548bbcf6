// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"
)

// A busy node.
const (
	talkers   = 50        // containers that write output
	talk      = 1_000_000 // bytes that all of them write in a second
	busyImage = 2048      // MiB of files of the image that is pulled over and over
	standBy   = 3         // pods that are made before they are needed
	// spareThreads are threads of the bench that may run beside one for each processor.
	spareThreads = 4
)

// talker is the command of a container that writes 20 lines, ten times a second. It starts no
// program for that.
func talker() []string {
	line := strings.Repeat("x", lineLength-1)
	const tick = 10
	lines := talk / talkers / tick / lineLength
	return []string{"sh", "-c", fmt.Sprintf("mkfifo /f; exec 3<>/f; while :; do i=0; while [ $i -lt %d ]; do echo %s; i=$((i+1)); done; read -t 0.1 x <&3; done", lines, line)}
}

// busy measures a busy node: containers write output, an image is pulled and removed over and over,
// and every second a container is killed, whose pod is then removed and replaced by another one.
func (n *node) busy(ctx context.Context, count int, rec record) error {
	pods, err := n.pods(ctx, talkers, 4, "")
	if err != nil {
		return err
	}
	if err := parallel(4, pods, func(_ int, p pod) error {
		id, err := n.create(ctx, p, containerConfig("talker", talker()...))
		if err != nil {
			return err
		}
		return n.startContainer(ctx, id)
	}); err != nil {
		return err
	}
	disk, err := openDisk(n.dir)
	if err != nil {
		return err
	}
	defer disk.file.Close()
	return n.whilePulling(ctx, func(ctx context.Context, pulling func() bool) error {
		ready, stop := n.podsOnStandBy(ctx)
		defer stop()
		var removed sync.WaitGroup
		defer removed.Wait()
		written := disk.writing()
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for range count {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			var p victimPod
			select {
			case p = <-ready:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if p.err != nil {
				return p.err
			}
			for !pulling() && ctx.Err() == nil {
				time.Sleep(idlePause)
			}
			if err := p.killedInParts(killBusy, rec, func() error { return n.exited(ctx, p.victim) }); err != nil {
				return err
			}
			removed.Go(func() { // an error shows at the end of the step, which removes all pods
				_ = n.stopPod(ctx, p.pod)
				_ = n.removePod(ctx, p.pod)
			})
		}
		writes, err := written()
		for _, took := range writes {
			rec.line(writeBusy, took, "ns/op")
		}
		return err
	})
}

// victimPod is a pod with a container that may be killed, or why there is none.
type victimPod struct {
	victim
	pod string
	err error
}

// podsOnStandBy makes pods, until stop is called, so that some are there when they are asked for.
func (n *node) podsOnStandBy(ctx context.Context) (ready <-chan victimPod, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	made, done := make(chan victimPod, standBy), make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			var v victim
			p, err := n.run(ctx, n.podConfig(), "")
			if err == nil {
				v, err = n.victim(ctx, p, "c")
			}
			select {
			case made <- victimPod{v, p.id, err}:
			case <-ctx.Done():
			}
		}
	}()
	return made, func() { cancel(); <-done }
}

// runBusy measures a busy node of each daemon, or of the one whose name contains b.only, by turns.
func (b *bench) runBusy(ctx context.Context) error {
	mib, count := busyImage, 60
	if b.sizes == quick {
		mib, count = b.sizes.PullMiB, b.sizes.Kills
	}
	stop, err := b.serve(mib)
	if err != nil {
		return err
	}
	defer stop()
	// The bench is the registry as well. The measurement of an end does not wait for the goroutines
	// that serve layers.
	runtime.GOMAXPROCS(runtime.NumCPU() + spareThreads)
	var ways []way
	for _, k := range b.kinds {
		if strings.Contains(k.name, b.only) {
			ways = append(ways, way{k, k.name})
		}
	}
	b.only = ""
	return b.byTurns(ctx, ways, "daemon", step{"a busy node", func(ctx context.Context, n *node, rec record) error {
		return n.busy(ctx, count, rec)
	}, false})
}
