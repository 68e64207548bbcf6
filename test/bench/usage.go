// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

// account is the control group of a daemon, and so of all that it starts outside of pods: shims,
// OCI runtimes and CNI plug-ins. The kernel counts their processor time together. A container is in
// a group of its pod's.
type account struct {
	dir  string
	file string // with the processor time
	unit time.Duration
}

// unified reports whether this machine has cgroup v2 alone.
func unified() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// openAccount makes a group with that name.
func openAccount(name string) (account, error) {
	a := account{filepath.Join("/sys/fs/cgroup/cpuacct", name), "cpuacct.usage", time.Nanosecond}
	if unified() {
		a = account{filepath.Join("/sys/fs/cgroup", name), "cpu.stat", time.Microsecond}
	}
	if err := os.Mkdir(a.dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return account{}, fmt.Errorf("make a control group for the daemon: %w", err)
	}
	return a, nil
}

// weighPods makes the parent of the pods' cgroups and gives it the weight that a kubelet gives its
// own: 1024 shares for each processor, so that all pods together do not count as one process beside
// the daemon's.
func weighPods(name string) error {
	shares := uint64(1024 * runtime.NumCPU())
	dir, file, weight := filepath.Join("/sys/fs/cgroup/cpu", name), "cpu.shares", shares
	if unified() {
		dir, file, weight = filepath.Join("/sys/fs/cgroup", name), "cpu.weight", cgroups.ConvertCPUSharesToCgroupV2Value(shares)
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make a control group for the pods: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatUint(weight, 10)), 0)
}

// take puts a process that has just been started into the group.
func (a account) take(pid int) error {
	return os.WriteFile(filepath.Join(a.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// used is the processor time of all that is, or was, in the group.
func (a account) used() (time.Duration, error) {
	b, err := os.ReadFile(filepath.Join(a.dir, a.file))
	if err != nil {
		return 0, fmt.Errorf("read processor time: %w", err)
	}
	text, _, _ := strings.Cut(strings.TrimPrefix(string(b), "usage_usec "), "\n")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read processor time: %w", err)
	}
	return time.Duration(n) * a.unit, nil
}

// close removes the group, whose processes have ended or are about to.
func (a account) close() error {
	err := os.Remove(a.dir)
	for range 100 {
		if !errors.Is(err, syscall.EBUSY) {
			break
		}
		time.Sleep(20 * time.Millisecond)
		err = os.Remove(a.dir)
	}
	return err
}

// timed carries out a call, and records how long it took and how much processor time the daemon
// used meanwhile.
func (n *node) timed(rec record, name string, call func() error) error {
	before, err := processorTime(n.cmd.Process.Pid)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := call(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	took := time.Since(began)
	after, err := processorTime(n.cmd.Process.Pid)
	rec.line(name, took, "ns/op", after-before, "cpu-ns/op")
	return err
}

// processorTime is the processor time of all threads of a process: clock_getcpuclockid(3).
func processorTime(pid int) (time.Duration, error) {
	const sched = 2 // CPUCLOCK_SCHED: nanoseconds, as the scheduler counts them
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|sched, &t); err != nil {
		return 0, fmt.Errorf("read processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// quiet is how long a daemon is left alone before its memory is read.
const quiet = 2 * time.Second

// weigh records the proportional and resident set sizes of the daemon and, with shims, the sum of
// the proportional set sizes of its shims.
func (n *node) weigh(name string, shims bool, rec record) error {
	time.Sleep(quiet)
	pss, rss, err := readMemory(n.cmd.Process.Pid)
	if err != nil {
		return err
	}
	if n.beside != nil {
		p, r, err := readMemory(n.beside.Process.Pid)
		if err != nil {
			return err
		}
		pss, rss = pss+p, rss+r
	}
	rec.line(name, pss, "pss-B", rss, "rss-B")
	if !shims {
		return nil
	}
	sum := 0
	for pid, command := range n.processes() {
		if strings.Contains(command, n.shim) {
			pss, _, err := readMemory(pid)
			if err != nil {
				return err
			}
			sum += pss
		}
	}
	rec.line(name+"/shims", sum, "pss-B")
	return nil
}

// readMemory reads the proportional and resident set sizes of a process.
func readMemory(pid int) (pss, rss int, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	for line := range strings.Lines(string(b)) {
		_, _ = fmt.Sscanf(line, "Pss: %d kB", &pss)
		_, _ = fmt.Sscanf(line, "Rss: %d kB", &rss)
	}
	if err != nil || pss == 0 || rss == 0 {
		return 0, 0, fmt.Errorf("read memory of process %d: Pss %d, Rss %d: %w", pid, pss, rss, err)
	}
	return pss << 10, rss << 10, nil
}
