// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth/internal/network"
	"berth/internal/pins"
)

// account is the control group of a daemon, and so of all that it starts outside of pods: shims,
// OCI runtimes and CNI plug-ins. The kernel counts their processor time together. A container is in
// a group of its pod's.
type account struct {
	dir  string
	file string // with the processor time
}

// openAccount makes a group with that name.
func openAccount(name string) (account, error) {
	a := account{dir: filepath.Join("/sys/fs/cgroup/cpuacct", name), file: "cpuacct.usage"}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		a = account{dir: filepath.Join("/sys/fs/cgroup", name), file: "cpu.stat"}
	}
	if err := os.Mkdir(a.dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return account{}, fmt.Errorf("make a control group for the daemon: %w", err)
	}
	return a, nil
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
	text, unit := strings.TrimSpace(string(b)), time.Nanosecond
	if a.file == "cpu.stat" {
		rest, ok := strings.CutPrefix(text, "usage_usec ")
		if !ok {
			return 0, fmt.Errorf("read processor time: %s begins with %.20q", a.file, text)
		}
		text, _, _ = strings.Cut(rest, "\n")
		unit = time.Microsecond
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read processor time: %w", err)
	}
	return time.Duration(n) * unit, nil
}

// close removes the group, whose processes have ended or are about to.
func (a account) close() error {
	for range 100 {
		err := os.Remove(a.dir)
		if err == nil || !errors.Is(err, syscall.EBUSY) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("remove %s: there are processes in it", a.dir)
}

// plugins measures what CNI's plug-ins take by themselves to connect a pod, with nothing around
// them.
func (n *node) plugins(ctx context.Context, count int, rec record) error {
	cni, err := network.New(network.Config{
		ConfDir:  n.dir + "/net.d",
		BinDirs:  []string{n.build + "/cni"},
		CacheDir: n.dir + "/cni-alone",
		Logger:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	netns, err := pins.NewNetworks(n.dir+"/netns-alone", "bench")
	if err != nil {
		return err
	}
	for i := range count {
		time.Sleep(idlePause)
		id := fmt.Sprintf("alone%d", i)
		p := network.Pod{
			ID:        id,
			Name:      id,
			Namespace: "bench",
			UID:       id,
			NetNS:     netns.PathFor(id),
		}
		if err := netns.Create(ctx, p.NetNS); err != nil {
			return err
		}
		began := time.Now()
		got, err := cni.Setup(ctx, p)
		took := time.Since(began)
		if err == nil {
			err = cni.Teardown(ctx, p, got)
		}
		if err := errors.Join(err, netns.Remove(ctx, p.NetNS)); err != nil {
			return fmt.Errorf("connect a pod: %w", err)
		}
		rec(cniAlone, ms(took))
	}
	return nil
}
