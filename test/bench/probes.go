// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
)

// Probes of a node: k#82440.
const (
	probed       = 100 // pods whose container is probed every second
	probesWindow = time.Minute
)

// runProbes measures by turns the cost of the probes of many pods with containerd, with berth as it
// ships, and with berth and exec = 'oci'; if b.only is set, only with those whose name contains it.
func (b *bench) runProbes(ctx context.Context) error {
	pods, window := probed, probesWindow
	if b.sizes == quick {
		pods, window = b.sizes.Total, 3*time.Second
	}
	stop, err := b.serve(1)
	if err != nil {
		return err
	}
	defer stop()
	ways := []way{{kinds[0], "berth"}, {with(kinds[0], "runtimes.runc.exec=oci"), "berth-oci"}, {kinds[1], "containerd"}}
	ways = slices.DeleteFunc(ways, func(w way) bool { return !strings.Contains(w.label, b.only) })
	b.only = ""
	return b.byTurns(ctx, ways, "daemon", step{"probes", func(ctx context.Context, n *node, rec record) error {
		return n.probes(ctx, pods, window, rec)
	}, false})
}

// probes runs true in the container of each pod every second, as the kubelet does for an exec
// probe: one that takes longer than a second delays the next of its container, and one that takes
// ten is an error, which is counted. The processor time is that of the daemon, its shims and their
// children, including the probes themselves, for each probe that succeeded.
func (n *node) probes(ctx context.Context, count int, window time.Duration, rec record) error {
	pods, err := n.pods(ctx, count, 4, "")
	if err != nil {
		return err
	}
	targets := make([]victim, count)
	if err := parallel(4, pods, func(i int, p pod) (err error) {
		targets[i], err = n.victim(ctx, p, "c")
		return err
	}); err != nil {
		return err
	}
	if err := pause(ctx, quiet); err != nil {
		return err
	}
	before, err := n.family()
	if err != nil {
		return err
	}
	began := time.Now()
	all := &calls{took: map[string][]float64{}, failed: map[string]int{}}
	end, cancel := context.WithTimeout(ctx, window)
	defer cancel()
	var wg sync.WaitGroup
	for i, v := range targets {
		wg.Go(func() {
			repeat(end, time.Duration(i)*time.Second/time.Duration(count), time.Second, func() {
				all.do(ctx, "Probe", func() error { return probe(ctx, n.Client, v.id) })
			})
		})
	}
	wg.Wait()
	took := time.Since(began)
	after, err := n.family()
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	done := len(all.took["Probe"]) - all.failed["Probe"]
	rec.line("Probes", (after-before)/time.Duration(max(done, 1)), "cpu-ns/op",
		float64(done)/took.Seconds(), "probes/s", float64(after-before)/float64(took), "cores")
	all.write(rec)
	return nil
}

// probe runs true in a container.
func probe(ctx context.Context, c *client.Client, id string) error {
	resp, err := c.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}, Timeout: 10})
	if err == nil && resp.GetExitCode() != 0 {
		err = fmt.Errorf("true ended with code %d", resp.GetExitCode())
	}
	return err
}
