// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// entered is how a thread came into a network namespace.
type entered struct {
	thread int
	err    error
}

// stay has a thread wait in the network namespace at path until the shim ends, and returns its ID.
// The Go runtime runs nothing else on that thread, and starts no other thread from it.
func stay(path string) (thread int, err error) {
	in := make(chan entered)
	go waitIn(path, in)
	e := <-in
	return e.thread, e.err
}

func waitIn(path string, in chan<- entered) {
	runtime.LockOSThread() // for ever: if it cannot enter, the thread ends with the goroutine
	if unix.Gettid() == unix.Getpid() {
		// The network namespace of the main thread is that of the shim. The next goroutine gets
		// another thread, since this one is locked, and answers.
		answer := make(chan entered)
		go waitIn(path, answer)
		in <- <-answer
		runtime.UnlockOSThread()
		return
	}
	if err := enter(path); err != nil {
		in <- entered{err: err}
		return
	}
	in <- entered{thread: unix.Gettid()}
	select {}
}

// enter moves this thread into the network namespace at path.
func enter(path string) error {
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	return nil
}
