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
)

// flights are the creations in flight and the names taken, by name: "sandbox/NAME_NAMESPACE_UID_ATTEMPT"
// or "container/NAME_POD_ATTEMPT".
//
// A creation goes on when its caller gives up. The same request again, with the same name and the same
// configuration, gets that operation's result, once: a client that has its answer and asks
// again is told that the name is taken.
type flights struct {
	sync.Mutex
	byName map[string]*flight
}

type flight struct {
	config    proto.Message
	done      chan struct{}
	id        string // valid once done is closed, or set at recovery
	err       error
	delivered bool
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

// join runs make under name, or waits for the same request that is running already. make gets a
// context that outlives the caller, bounded by the controller's CreateTimeout. It returns the
// new ID.
func (c *Controller) join(ctx context.Context, name string, config proto.Message, work func(ctx context.Context, id string) error) (string, error) {
	c.flights.Lock()
	f, taken := c.flights.byName[name]
	if !taken {
		if f = c.launchLocked(ctx, name, config, work); f == nil {
			c.flights.Unlock()
			return "", errStopping
		}
	} else if err := f.mayJoin(name, config); err != nil {
		c.flights.Unlock()
		return "", err
	}
	c.flights.Unlock()

	select {
	case <-ctx.Done():
		return "", fmt.Errorf("make %s: it goes on, ask again for its result: %w", name, ctxError(ctx))
	case <-f.done:
	}
	c.flights.Lock()
	defer c.flights.Unlock()
	f.delivered = true // also to others who joined while it was in flight
	f.config = nil
	return f.id, f.err
}

// launchLocked starts the operation; nil when berth is stopping. It goes on when ctx ends, and keeps what ctx carries.
// c.flights must be locked.
func (c *Controller) launchLocked(ctx context.Context, name string, config proto.Message, work func(ctx context.Context, id string) error) *flight {
	f := &flight{config: config, done: make(chan struct{}), id: c.cfg.NewID()}
	c.flights.byName[name] = f
	if c.spawn(func() {
		ctx, cancel := c.outlive(ctx)
		defer cancel()
		err := work(ctx, f.id)
		c.flights.Lock()
		f.err = err
		if err != nil && c.flights.byName[name] == f {
			delete(c.flights.byName, name) // the next one tries anew
		}
		c.flights.Unlock()
		close(f.done)
	}) {
		return f
	}
	delete(c.flights.byName, name)
	return nil
}

func (f *flight) mayJoin(name string, config proto.Message) error {
	select {
	case <-f.done:
		if f.delivered {
			return fmt.Errorf("name %s is taken by %s; remove that first or use another attempt number: %w", name, f.id, errdefs.ErrAlreadyExists)
		}
	default:
	}
	if !proto.Equal(f.config, config) {
		return fmt.Errorf("name %s is taken by %s, which was asked for with another configuration: %w", name, f.id, errdefs.ErrAlreadyExists)
	}
	return nil
}

// take reserves a name for a unit that exists already. It reports false when another has it.
func (f *flights) take(name, id string) bool {
	f.Lock()
	defer f.Unlock()
	if _, taken := f.byName[name]; taken {
		return false
	}
	done := make(chan struct{})
	close(done)
	f.byName[name] = &flight{id: id, done: done, delivered: true}
	return true
}

// release frees a name if id has it.
func (f *flights) release(name, id string) {
	f.Lock()
	defer f.Unlock()
	if fl, ok := f.byName[name]; ok && fl.id == id {
		delete(f.byName, name)
	}
}

// outlive is a context that carries what ctx does, and ends with berth or after CreateTimeout instead of with ctx.
func (c *Controller) outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.CreateTimeout)
	stop := context.AfterFunc(c.life, cancel)
	return ctx, func() { stop(); cancel() }
}
