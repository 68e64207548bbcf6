// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// mostNice is the highest priority for the processors that setpriority(2) gives.
const mostNice = -20

// ending is the time at which a process ended according to the kernel, or the reason why that is
// not known.
type ending struct {
	at  time.Time
	err error
}

// watch waits for the end of the victim's process as the best possible runtime would: by a pidfd,
// on a thread with priority over all others, so that it waits for the kernel and not for the
// processors. The channel gets one value.
func (v victim) watch() (<-chan ending, error) {
	fd, err := unix.PidfdOpen(v.pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open a pidfd of container %s: %w", v.id, err)
	}
	seen, waiting := make(chan ending, 1), make(chan struct{})
	go func() {
		// The thread ends with the goroutine, because it is locked: nothing else gets its priority.
		runtime.LockOSThread()
		defer unix.Close(fd)
		if err := os.NewSyscallError("setpriority", unix.Setpriority(unix.PRIO_PROCESS, 0, mostNice)); err != nil {
			close(waiting)
			seen <- ending{err: err}
			return
		}
		close(waiting)
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(bound.Milliseconds()))
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Poll(fds, int(bound.Milliseconds()))
		}
		at := time.Now()
		if err == nil && n == 0 {
			err = fmt.Errorf("it has not ended within %s", bound)
		}
		seen <- ending{at, about("wait for the end of container", v.id, err)}
	}()
	<-waiting
	return seen, nil
}

// killedInParts kills v, and measures when the kernel reports the end of its process, how much
// later that is known, and the whole, under name.
func (v victim) killedInParts(name string, rec record, known func() error) error {
	seen, err := v.watch()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := v.kill(); err != nil {
		return err
	}
	if err := known(); err != nil {
		return err
	}
	now := time.Now()
	end := <-seen
	if end.err != nil {
		return end.err
	}
	rec.line(name, now.Sub(began), "ns/op")
	rec.line(killToEnd, end.at.Sub(began), "ns/op")
	rec.line(endToExited, max(0, now.Sub(end.at)), "ns/op")
	return nil
}
