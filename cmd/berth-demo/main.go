// SPDX-License-Identifier: Apache-2.0

// Command berth-demo shows berth at work. It starts the berth binary beside it in a temporary
// directory, makes a small image without a registry, plays a pod whose containers end in different
// ways, prints how they ended and how long after the end of each process its exit was visible, and
// removes everything. It needs root.
//
// It is a program of its own so that what only the demo needs is not part of berth.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"berth/internal/cri"
)

func main() {
	// The kernel ends the started berth when the thread that started it ends (PR_SET_PDEATHSIG), so
	// main keeps its thread.
	runtime.LockOSThread()
	beside := "berth"
	if exe, err := os.Executable(); err == nil {
		beside = filepath.Join(filepath.Dir(exe), "berth")
	}
	binary := flag.String("berth", beside, "path of the berth binary")
	verbose := flag.Bool("v", false, "also print berth's own log")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *binary, *verbose)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-demo:", cri.Explain(err))
		os.Exit(1)
	}
}

func run(ctx context.Context, binary string, verbose bool) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("the demo runs real containers; run it as root")
	}
	dir, err := os.MkdirTemp("", "bd") // a short name: paths of sockets are limited to 107 bytes
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := start(ctx, binary, dir, verbose)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	return show(ctx, s)
}
