// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	runc "github.com/containerd/go-runc"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// starter starts containers in the place of runc, which for that is one process more: it looks
// whether the container is created, and reads a byte from the FIFO exec.fifo among its records,
// which releases the init process. Its Go runtime, and its libraries, cost a hundred times that.
//
// It is a trick: it relies on the records of runc 1.5, and on nothing else being done by its start.
// berth names the OCI runtime that this is true of in the annotation startKey of a sandbox, unless
// the setting start of the runtime handler is oci. Whatever is not as expected before the FIFO is
// opened is left to runc, and so is the answer if the process is not released. Delete when a start
// of runc takes less than a millisecond, or uses no FIFO any more:
// https://github.com/opencontainers/runc/issues/4402.
type starter struct {
	runc.ProcessMonitor

	mu      sync.Mutex
	program string                     // the OCI runtime; "" for none
	calls   map[string]context.Context // calls that start a container, by its ID
}

// startKey is the annotation of a sandbox that names the OCI runtime.
const startKey = "io.berth.shim.start"

// released stands for the end of a command that was not run, because it was carried out here.
var released = make(chan runc.Exit)

// trust notes the OCI runtime that the bundle of a sandbox names, for all containers that are
// started from now on; none if it names none.
func (s *starter) trust(bundle string) {
	program, err := annotation(filepath.Join(bundle, "config.json"), startKey)
	if err != nil {
		log.L.WithError(err).Warn("the OCI runtime starts all containers")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.program = program
}

// begin notes a call that starts a container. over is to be called when it has returned.
func (s *starter) begin(ctx context.Context, id string) (over func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = map[string]context.Context{}
	}
	s.calls[id] = ctx
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.calls, id)
	}
}

// Start implements [runc.ProcessMonitor].
func (s *starter) Start(c *exec.Cmd) (chan runc.Exit, error) {
	if s.carriesOut(c) {
		return released, nil
	}
	return s.ProcessMonitor.Start(c)
}

// StartLocked implements [runc.ProcessMonitor].
func (s *starter) StartLocked(c *exec.Cmd) (chan runc.Exit, error) {
	if s.carriesOut(c) {
		return released, nil
	}
	return s.ProcessMonitor.StartLocked(c)
}

// Wait implements [runc.ProcessMonitor].
func (s *starter) Wait(c *exec.Cmd, all chan runc.Exit) (int, error) {
	if all == released {
		return 0, nil
	}
	return s.ProcessMonitor.Wait(c, all)
}

// carriesOut starts the container that a command would start, and reports whether it did.
func (s *starter) carriesOut(c *exec.Cmd) bool {
	root, id := startOf(c.Args)
	s.mu.Lock()
	ctx, asked := s.calls[id]
	known := s.program != "" && s.program == c.Args[0]
	s.mu.Unlock()
	if !asked || !known || root == "" {
		return false
	}
	err := release(ctx, filepath.Join(root, id))
	if err != nil {
		log.L.WithError(err).WithField("id", id).Info("the OCI runtime is asked to start a container")
	}
	return err == nil
}

// startOf returns the directory of the records and the container of a command that starts one.
func startOf(args []string) (root, id string) {
	at := slices.Index(args, "--root")
	if n := len(args); at > 0 && at+1 < n-2 && args[n-2] == "start" {
		return args[at+1], args[n-1]
	}
	return "", ""
}

// record is the part of runc's record of a container that tells about its first process.
type record struct {
	Pid     int               `json:"init_process_pid"`
	Started uint64            `json:"init_process_start"`
	Groups  map[string]string `json:"cgroup_paths"`
}

// look is how long a process that does not come is waited for until it is looked for again.
const look = 100 * time.Millisecond

// release lets the first process of a container that is created execute its program. dir has the
// records of the container. It returns when the process is about to, and an error if it is not.
func release(ctx context.Context, dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if err != nil {
		return err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return fmt.Errorf("decode the record of the container: %w", err)
	}
	if !r.runs() || !r.thawed() {
		return errors.New("its process does not run")
	}
	path := filepath.Join(dir, "exec.fifo")
	// Without a writer, to open it would wait without a bound.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	for {
		// Until there was a writer, poll reports nothing, and so no end either.
		asked := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(asked, int(look.Milliseconds())); err != nil && err != unix.EINTR {
			return fmt.Errorf("wait for the process: %w", err)
		}
		if asked[0].Revents != 0 {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !r.runs() {
			break // it may have run its program to the end meanwhile
		}
	}
	var said [8]byte
	if n, err := unix.Read(fd, said[:]); err != nil || n == 0 {
		return fmt.Errorf("its process has not said that it goes on: %v", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.L.WithError(err).Warn("a container that was started is taken for one that was not")
	}
	return nil
}

// runs reports whether the process is there and has not ended.
func (r record) runs() bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.Pid))
	at := bytes.LastIndexByte(b, ')') // of its name, which may have others
	if err != nil || at < 0 {
		return false
	}
	const state, started = 3, 22 // proc_pid_stat(5)
	f := bytes.Fields(b[at+1:])
	if len(f) <= started-state || string(f[0]) == "Z" || string(f[0]) == "X" {
		return false
	}
	return string(f[started-state]) == strconv.FormatUint(r.Started, 10)
}

// thawed reports whether the control group of the container is certain not to be frozen. runc
// starts no container that is paused.
func (r record) thawed() bool {
	if dir := r.Groups["freezer"]; dir != "" {
		b, err := os.ReadFile(filepath.Join(dir, "freezer.state"))
		return err == nil && string(b) == "THAWED\n"
	}
	dir := r.Groups[""]
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.freeze"))
	return dir != "" && err == nil && string(b) == "0\n"
}
