// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/pkg/sys/reaper"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/go-runc"
	"github.com/containerd/log"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"golang.org/x/sys/unix"
)

func init() {
	registry.Register(&plugin.Registration{
		// Only a shim that serves comes here, and after its service of tasks, which has another monitor.
		Type: "io.berth.shim", ID: "commands", Requires: []plugin.Type{plugins.TTRPCPlugin},
		InitFn: func(*plugin.InitContext) (any, error) {
			c := newCommands()
			c.reap()
			runc.Monitor = c
			return c, nil
		},
	})
}

// commands are the commands that the shim has started and waits for: those of the OCI runtime.
//
// Containerd's shim hands the ends of all its children on in one queue, including those of such
// commands. It hands on one end after another, and waits for up to a second with each that is not
// taken. They are taken by a goroutine that starts such a command itself, to kill the processes
// that outlived the init process of a container (KillAll), and waits for it: until the ends of all
// these processes are handed on. With 150 processes the shim stood still for two minutes.
//
// So commands are waited for beside the queue. Each signal of the kernel about children begins a
// round of its own, except while such a kill is in progress, because its ends would not be taken.
// The order in which ends are handed on is not significant: they are distinguished by their PIDs.
type commands struct {
	children chan os.Signal // has one for all children that have ended by now

	mu sync.Mutex
	of map[int]*command // by PID, until it was waited for
	// kills of all processes of a container that began a moment ago and are under way
	kills int
}

type command struct {
	status chan int // gets the exit status, unless that is handed on with all others
	over   func()
	ended  chan struct{} // closed once it was waited for
}

// killPatience is for how long a kill keeps rounds from beginning, at most.
const killPatience = 10 * time.Second

func newCommands() *commands {
	return &commands{children: make(chan os.Signal, 1), of: map[int]*command{}}
}

// reap reaps the children of the shim from now on, in the place of containerd's own loop.
func (c *commands) reap() {
	signal.Notify(c.children, unix.SIGCHLD)
	go func() {
		for range c.children {
			if kills := c.first(); kills {
				continue // the end of the kill begins the next round
			}
			go func() {
				if err := reaper.Reap(); err != nil {
					log.L.WithError(err).Error("reap the children of the shim")
				}
			}()
		}
	}()
}

// first reaps the commands that have ended, and reports whether a kill is under way. One that has
// ended since is handed on with all others.
func (c *commands) first() (kills bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for pid, cmd := range c.of {
		if len(cmd.status) > 0 { // not looked at yet
			continue
		}
		var ws unix.WaitStatus
		if got, err := unix.Wait4(pid, &ws, unix.WNOHANG, nil); err != nil || got != pid {
			continue
		}
		if ws.Signaled() {
			cmd.status <- 128 + int(ws.Signal())
		} else {
			cmd.status <- ws.ExitStatus()
		}
	}
	return c.kills > 0
}

// again begins another round.
func (c *commands) again() {
	select {
	case c.children <- unix.SIGCHLD:
	default: // it is about to begin
	}
}

// kill notes that a command is about to be started, if it kills all processes of a container. over
// is to be called when it has ended.
func (c *commands) kill(cmd *exec.Cmd) (over func()) {
	if !slices.Contains(cmd.Args, "kill") || !slices.Contains(cmd.Args, "--all") {
		return func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kills++
	over = sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.kills--
		c.again()
	})
	time.AfterFunc(killPatience, over)
	return over
}

// Start implements [runc.ProcessMonitor].
func (c *commands) Start(cmd *exec.Cmd) (chan runc.Exit, error) {
	all, _, err := c.start(cmd)
	return all, err
}

// StartLocked implements [runc.ProcessMonitor]. The kernel kills the command, which has a
// Pdeathsig, when the thread that has started it ends. So the thread does nothing else until the
// command was waited for. Containerd's own StartLocked gives it back at once. It may wait in the
// network namespace of a pod next, and a thread that does ends with its pod.
func (c *commands) StartLocked(cmd *exec.Cmd) (chan runc.Exit, error) {
	var all chan runc.Exit
	answer := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		got, own, err := c.start(cmd)
		all = got
		answer <- err
		if err == nil {
			<-own.ended
		}
	}()
	err := <-answer
	return all, err
}

func (c *commands) start(cmd *exec.Cmd) (chan runc.Exit, *command, error) {
	over := c.kill(cmd)
	all, err := reaper.Default.Start(cmd)
	if err != nil {
		over()
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	own := &command{status: make(chan int, 1), over: over, ended: make(chan struct{})}
	c.of[cmd.Process.Pid] = own
	c.again() // it may have ended before the last round could know about it
	return all, own, nil
}

// Wait implements [runc.ProcessMonitor]: all has the ends of all children.
func (c *commands) Wait(cmd *exec.Cmd, all chan runc.Exit) (int, error) {
	pid := cmd.Process.Pid
	c.mu.Lock()
	own := c.of[pid]
	c.mu.Unlock()
	defer func() {
		own.over()
		close(own.ended)
		_ = cmd.Wait() // for its output: its status is known
		reaper.Default.Unsubscribe(all)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.of[pid] == own { // unless another command has the same PID
			delete(c.of, pid)
		}
	}()
	for {
		select {
		case status := <-own.status:
			return status, nil
		case e, more := <-all:
			if !more {
				return -1, reaper.ErrNoSuchProcess
			}
			if e.Pid == pid {
				return e.Status, nil
			}
		}
	}
}
