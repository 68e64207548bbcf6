// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
)

// quiet is how long a daemon is left alone before its memory is read.
const quiet = 2 * time.Second

// scale runs total pods with one container each, the first atOnce of them at the same time. It
// measures the daemon's memory before and after, and the time from a kill -9 until the daemon is
// ready again. The pods stay.
func (n *node) scale(ctx context.Context, atOnce, total int, rec record) error {
	if err := n.weigh(memory0, "", rec); err != nil {
		return err
	}
	configs := make([]*runtimeapi.PodSandboxConfig, total)
	for i := range configs {
		configs[i] = n.podConfig()
	}
	bring := func(cfgs []*runtimeapi.PodSandboxConfig, k int) ([]pod, error) {
		out := make(chan pod, len(cfgs))
		err := parallel(k, cfgs, func(cfg *runtimeapi.PodSandboxConfig) error {
			p, err := n.run(ctx, cfg, "")
			out <- p
			return err
		})
		close(out)
		var pods []pod
		for p := range out {
			pods = append(pods, p)
		}
		return pods, err
	}
	began := time.Now()
	pods, err := bring(configs[:atOnce], atOnce)
	if err != nil {
		return err
	}
	rec(runPodsAtOnce, ms(time.Since(began)))
	more, err := bring(configs[atOnce:], 4)
	if err != nil {
		return err
	}
	err = parallel(4, append(pods, more...), func(p pod) error {
		id, err := n.create(ctx, p, containerConfig("c", nil, sleeper...))
		if err == nil {
			err = n.startContainer(ctx, id)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := n.weigh(memory50, shims50, rec); err != nil {
		return err
	}
	if err := n.end(syscall.SIGKILL); err != nil {
		return err
	}
	took, err := n.start(ctx, func(ctx context.Context, c *cri.Client) bool { return running(ctx, c) == total })
	if err != nil {
		return err
	}
	rec(restart, ms(took))
	return nil
}

// running counts the containers that the daemon reports as running; -1 if it does not answer.
func running(ctx context.Context, c *cri.Client) (k int) {
	resp, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return -1
	}
	for _, ct := range resp.GetContainers() {
		if ct.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			k++
		}
	}
	return k
}

// weigh records the proportional and resident set sizes of the daemon and, if shims names a metric,
// the sum of the proportional set sizes of its shims.
func (n *node) weigh(metric, shims string, rec record) error {
	time.Sleep(quiet)
	m, err := readMemory(n.cmd.Process.Pid)
	if err != nil {
		return err
	}
	rec(metric, m["Pss"])
	rec(metric+rss, m["Rss"])
	if shims == "" {
		return nil
	}
	var sum float64
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range found {
		b, _ := os.ReadFile(p)
		if !bytes.Contains(b, []byte("containerd-shim")) || !bytes.Contains(b, []byte(n.dir+"/")) {
			continue
		}
		pid, _ := strconv.Atoi(strings.Split(p, "/")[2])
		m, err := readMemory(pid)
		if err != nil {
			return err
		}
		sum += m["Pss"]
	}
	rec(shims, sum)
	return nil
}

// readMemory reads smaps_rollup, and returns MiB by name.
func readMemory(pid int) (map[string]float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return nil, fmt.Errorf("read memory of process %d: %w", pid, err)
	}
	m := map[string]float64{}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == "kB" {
			kb, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				return nil, fmt.Errorf("read memory of process %d: %w", pid, err)
			}
			m[strings.TrimSuffix(f[0], ":")] = kb / 1024
		}
	}
	if m["Pss"] == 0 || m["Rss"] == 0 {
		return nil, fmt.Errorf("read memory of process %d: no Pss or Rss", pid)
	}
	return m, nil
}
