// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// stay is a thread that waits in a network namespace.
type stay struct {
	thread int
	over   chan struct{} // closed when it need not wait any longer
}

// entered is how a thread came into a network namespace.
type entered struct {
	thread int
	err    error
}

// stayIn has a thread wait in the network namespace at path until end is called or the shim ends.
// The Go runtime runs nothing else on that thread, and starts no other thread from it.
func stayIn(path string) (*stay, error) {
	in, over := make(chan entered), make(chan struct{})
	go waitIn(path, in, over)
	e := <-in
	if e.err != nil {
		return nil, e.err
	}
	return &stay{thread: e.thread, over: over}, nil
}

// end ends the thread, which would keep the namespace beyond its pod; nothing for nil. It is called
// once.
func (s *stay) end() {
	if s != nil {
		close(s.over)
	}
}

func waitIn(path string, in chan<- entered, over <-chan struct{}) {
	runtime.LockOSThread() // for ever: the thread ends with the goroutine
	if unix.Gettid() == unix.Getpid() {
		// The network namespace of the main thread is the shim's own. The next goroutine gets another
		// thread, because this one is locked, and answers.
		answer := make(chan entered)
		go waitIn(path, answer, over)
		in <- <-answer
		runtime.UnlockOSThread()
		return
	}
	if err := enter(path); err != nil {
		in <- entered{err: err}
		return
	}
	in <- entered{thread: unix.Gettid()}
	<-over
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
