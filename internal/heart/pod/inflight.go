// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/ops"
)

// inflight holds the creations in flight and the names that are taken, by name:
// "sandbox/NAME/NAMESPACE/UID/ATTEMPT" or "container/NAME/POD/ATTEMPT".
//
// A creation goes on when its caller gives up. The same request again, with the same name and the
// same configuration, gets the result of that operation, once: a client that has its answer and
// asks again learns that the name is taken.
type inflight struct {
	ops   *operations
	newID func() string

	mu     sync.Mutex
	byName map[string]*creation
	making int // creations in flight
}

// mostCreations is how many creations may be in flight. A creation outlives its caller, and the
// next call joins it: a node that has more of them at once makes none of them any more.
const mostCreations = 1024

// creation is one operation that makes a unit, in flight or done.
type creation struct {
	config    proto.Message // nil once the result was delivered, and for calls that none may join
	done      chan struct{}
	id        string
	err       error // valid once done is closed
	delivered bool
	op        *ops.Op // nil as long as it has not begun
}

func newInflight(o *operations, newID func() string) *inflight {
	return &inflight{ops: o, newID: newID, byName: map[string]*creation{}}
}

func sandboxName(m *runtimeapi.PodSandboxMetadata) string {
	return strings.Join([]string{"sandbox", m.GetName(), m.GetNamespace(), m.GetUid(), fmt.Sprint(m.GetAttempt())}, "/")
}

func containerName(podID string, m *runtimeapi.ContainerMetadata) string {
	return strings.Join([]string{"container", m.GetName(), podID, fmt.Sprint(m.GetAttempt())}, "/")
}

func nameOf(u *unit) string {
	if u.isSandbox() {
		return sandboxName(u.sandbox.Config.GetMetadata())
	}
	return containerName(u.pod.id, u.container.Config.GetMetadata())
}

// join runs work under name, or waits for the same request if that is in flight already, and
// returns the ID of the new unit. work gets a context that outlives the caller and the ID that the
// unit is to have. Without a configuration it joins nothing, and nothing joins it. w describes the
// work, and gets the ID.
func (i *inflight) join(ctx context.Context, name string, w ops.Work, config proto.Message, work func(ctx context.Context, id string) error) (string, error) {
	i.mu.Lock()
	c, taken := i.byName[name]
	if !taken {
		if i.making >= mostCreations {
			i.mu.Unlock()
			return "", fmt.Errorf("make %s: %d pods and containers are being made: %w", name, mostCreations, errdefs.ErrResourceExhausted)
		}
		if c = i.launchLocked(ctx, name, w, config, work); c == nil {
			i.mu.Unlock()
			return "", errStopping
		}
	} else if err := c.mayJoin(name, config); err != nil {
		i.mu.Unlock()
		return "", err
	}
	i.mu.Unlock()

	if taken {
		_, op := ops.Begin(ctx, ops.Work{Kind: ops.Wait, What: "the same request, which another call has begun"})
		defer op.End()
	}
	select {
	case <-ctx.Done():
		i.mu.Lock()
		defer i.mu.Unlock()
		if waits := c.op.Waits(); waits != "" {
			return "", fmt.Errorf("make %s: it goes on, ask again for its result: %s: %w", name, waits, ctxError(ctx))
		}
		return "", fmt.Errorf("make %s: it goes on, ask again for its result: %w", name, ctxError(ctx))
	case <-c.done:
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	c.delivered = true // also to others who joined while it was in flight
	c.config = nil
	return c.id, c.err
}

// launchLocked starts the operation; nil when berth is stopping. i.mu must be held.
func (i *inflight) launchLocked(ctx context.Context, name string, w ops.Work, config proto.Message, work func(ctx context.Context, id string) error) *creation {
	c := &creation{config: config, done: make(chan struct{}), id: i.newID()}
	w.Of.ID = c.id
	i.byName[name] = c
	i.making++
	if i.ops.spawn(func() {
		ctx, op, end := i.ops.outlive(ctx, w)
		defer end()
		i.mu.Lock()
		c.op = op
		i.mu.Unlock()
		err := guard(func() error { return work(ctx, c.id) })
		i.mu.Lock()
		i.making--
		c.err = err
		if err != nil && i.byName[name] == c {
			delete(i.byName, name) // the next one tries anew
		}
		i.mu.Unlock()
		close(c.done)
	}) {
		return c
	}
	i.making--
	delete(i.byName, name)
	return nil
}

// mayJoin returns why a request cannot have the result of c. The lock of inflight must be held.
func (c *creation) mayJoin(name string, config proto.Message) error {
	select {
	case <-c.done:
		if c.delivered {
			return fmt.Errorf("name %s is taken by %s; remove that first or use another attempt number: %w", name, c.id, errdefs.ErrAlreadyExists)
		}
	default:
	}
	if config == nil || c.config == nil {
		return fmt.Errorf("name %s is taken by %s, which another call makes: %w", name, c.id, errdefs.ErrAlreadyExists)
	}
	if !proto.Equal(c.config, config) {
		return fmt.Errorf("name %s is taken by %s, which was asked for with another configuration: %w", name, c.id, errdefs.ErrAlreadyExists)
	}
	return nil
}

// take reserves the name of a unit that exists already. It reports false when another has it.
func (i *inflight) take(name, id string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, taken := i.byName[name]; taken {
		return false
	}
	done := make(chan struct{})
	close(done)
	i.byName[name] = &creation{id: id, done: done, delivered: true}
	return true
}

// free makes a name available again, if id has it.
func (i *inflight) free(name, id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if c, ok := i.byName[name]; ok && c.id == id {
		delete(i.byName, name)
	}
}
