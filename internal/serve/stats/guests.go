// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"context"
	"sync"
	"time"

	"github.com/opencontainers/cgroups"

	"berth/internal/base/ops"
	"berth/internal/heart/pod"
)

const (
	// guestTimeout is how long a shim may take to answer. It is not asked again meanwhile.
	guestTimeout = 10 * time.Second
	// guestPatience is how long a measurement waits for all shims together.
	guestPatience = time.Second
)

// guests measures containers whose processes are not on this host: behind a kernel like gVisor's,
// or in a virtual machine. Their shims know, and may hang: each is asked on a goroutine of its own,
// at most once at a time, and a measurement does not wait for those that are late.
type guests struct {
	shims Shims

	mu    sync.Mutex
	asked map[string]*answer // by container, while its shim is asked
}

// answer is the reply of a shim, once done is closed; nil if it has not answered in time.
type answer struct {
	done chan struct{}
	u    *usage
}

// of returns the usage of containers by their IDs. One is left out if its shim does not answer.
func (g *guests) of(ctx context.Context, list []container) map[string]*usage {
	answers := map[string]*answer{}
	for _, c := range list {
		if g.shims != nil && c.isGuest() {
			answers[c.item.GetId()] = g.ask(c)
		}
	}
	if len(answers) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, guestPatience)
	defer cancel()
	out := map[string]*usage{}
	for id, a := range answers {
		select {
		case <-a.done:
		case <-ctx.Done():
		}
		select {
		case <-a.done:
			if a.u != nil {
				out[id] = a.u
			}
		default:
		}
	}
	return out
}

// ask asks the shim of a container, or joins the question in flight.
func (g *guests) ask(c container) *answer {
	id := c.item.GetId()
	g.mu.Lock()
	defer g.mu.Unlock()
	if a := g.asked[id]; a != nil {
		return a
	}
	a := &answer{done: make(chan struct{})}
	g.asked[id] = a
	go func() {
		defer func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			delete(g.asked, id)
			close(a.done)
		}()
		ctx, cancel := context.WithTimeout(context.Background(), guestTimeout)
		defer cancel()
		_, op := ops.Begin(ctx, ops.Work{Kind: ops.Shim, What: "the shim of " + id + " to say what the container uses"})
		u, err := g.shims.TaskUsage(ctx, id)
		op.End()
		if err == nil {
			a.u = guestUsage(u)
		}
	}()
	return a
}

// guestUsage is the usage that a shim reports, as if it had been read from a cgroup of v2.
func guestUsage(t pod.TaskUsage) *usage {
	s := cgroups.NewStats()
	s.CpuStats.CpuUsage.TotalUsage = t.CPU
	s.MemoryStats.Usage.Usage, s.MemoryStats.Usage.Limit = t.Memory, t.MemoryLimit
	s.MemoryStats.SwapOnlyUsage.Limit = unlimited // shims do not say
	s.MemoryStats.Stats["inactive_file"], s.MemoryStats.Stats["anon"] = t.InactiveFile, t.Anon
	return &usage{Stats: s, v2: true, at: time.Now(), hasCPU: t.CPU > 0, hasMem: t.Memory > 0, guest: true}
}
