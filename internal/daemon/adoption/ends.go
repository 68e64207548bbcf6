// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/base/exit"
	"berth/internal/engine/adopt"
	"berth/internal/host/cgroup"
	"berth/internal/host/pidfd"
)

// lastAnswers is how long the answers of shims may take that a containerd has passed on which is
// gone.
const lastAnswers = 2 * time.Second

// ends is how containers end while the plug-in is turned off. The plug-in deletes the task of one
// that has ended, and then writes its code down: a plug-in that is stopped in between leaves
// neither. So the kernel, by a pidfd, and the shim, by a wait for the task, are asked beside it.
type ends struct {
	node  *node
	kills oomKills
	stop  context.CancelFunc
	waits sync.WaitGroup

	pidfds map[string]int // by container
	mu     sync.Mutex
	said   map[string]exit.Fact // by shims
}

// watchEnds watches the containers of a plan that run. The caller calls close.
func watchEnds(ctx context.Context, n *node, p adopt.Plan, kills oomKills) *ends {
	ctx, stop := context.WithCancel(ctx)
	e := &ends{
		node:   n,
		kills:  kills,
		stop:   stop,
		pidfds: map[string]int{},
		said:   map[string]exit.Fact{},
	}
	for _, pod := range p.Pods {
		for _, ct := range pod.Containers {
			switch {
			case ct.Task == nil:
			case ct.Task.Stopped: // the plug-in is about to delete it
				e.said[ct.ID] = exit.Fact{
					ID:       ct.ID,
					Code:     ct.Task.Code,
					Measured: true,
					At:       n.clock.Instant(ct.Task.ExitedAt),
					Origin:   exit.Task,
				}
			case ct.Task.Running:
				e.watch(ctx, ct)
			}
		}
	}
	return e
}

// watch watches a container that runs.
func (e *ends) watch(ctx context.Context, ct adopt.Container) {
	group := ""
	fd, p, err := pidfd.OpenProcess(pidfd.Process{Pid: ct.Task.Pid})
	if err == nil {
		group, _ = cgroup.Of(p.Pid) // without it the plug-in alone says whether it was the OOM killer
		runs, rerr := e.node.ctrd.Runs(ctx, ct.ID, p.Pid)
		if runs { // now, and so when the pidfd was opened: it is its process's
			e.pidfds[ct.ID] = fd
		} else {
			_ = unix.Close(fd)
			group, err = "", rerr
		}
	}
	if err != nil && !errdefs.IsNotFound(err) { // or it has just ended
		e.node.said("container %s: the kernel cannot be asked how it ends, and its shim alone is: %v", ct.ID, err)
	}
	e.waits.Go(func() {
		f, err := e.node.ctrd.Ended(ctx, ct.ID)
		if err != nil {
			return // containerd was stopped before the container ended, or its shim is gone
		}
		if n, err := cgroup.OOMKills(group); group != "" && err == nil {
			f.OOM = n > e.kills[ct.ID].count
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.said[ct.ID] = f
	})
}

// facts returns how containers have ended, as far as a witness knows. It is called when the
// containerd is gone that was there before.
func (e *ends) facts() map[string]exit.Fact {
	answered := make(chan struct{})
	go func() { e.waits.Wait(); close(answered) }()
	select {
	case <-answered:
	case <-time.After(lastAnswers):
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	facts := maps.Clone(e.said)
	for id, fd := range e.pidfds {
		if code, known := pidfd.Code(fd); known && !facts[id].Measured {
			facts[id] = exit.Fact{
				ID:          id,
				Code:        code,
				Measured:    true,
				FirstThread: true,
				At:          e.node.clock.Now(), // it has ended since the plug-in was told to stop
				Origin:      exit.Kernel,
			}
		}
	}
	return facts
}

// close closes the pidfds, and ends the waiting for shims.
func (e *ends) close() {
	e.stop()
	e.waits.Wait()
	for _, fd := range e.pidfds {
		_ = unix.Close(fd)
	}
	clear(e.pidfds)
}
