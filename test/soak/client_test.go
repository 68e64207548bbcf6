// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	api "berth/api/client"
)

const (
	// once is how long one try of a call may take, and longEnough is how long a client repeats a call
	// until it counts as one that cannot be repeated.
	once, longEnough = 20 * time.Second, time.Minute
	// between is the time between two tries of a call, and between two looks at a state.
	between = 10 * time.Millisecond
)

// client repeats its calls until they are answered. It is used by one goroutine.
type client struct {
	s  *soak
	on *api.Client
}

func (s *soak) client() *client {
	c := &client{s: s}
	c.dial()
	return c
}

// dial connects anew, since gRPC waits longer after each connection that failed.
func (c *client) dial() {
	if c.on != nil {
		_ = c.on.Close()
	}
	on, err := api.Dial(c.s.n.Dir + "/berth.sock")
	if err != nil {
		panic(err) // the path is not one of a socket
	}
	c.on = on
}

func (c *client) close() { _ = c.on.Close() }

// do repeats a call until it succeeds. It panics with a [broken] if that takes too long.
func (c *client) do(what string, call func(ctx context.Context, on *api.Client) error) {
	c.try(what, func(ctx context.Context, on *api.Client) (bool, error) { return false, call(ctx, on) })
}

// try is do for a call that can be known to have been carried out although it returns an error.
func (c *client) try(what string, call func(ctx context.Context, on *api.Client) (done bool, err error)) {
	for began, repeated := time.Now(), false; ; repeated = true {
		ctx, cancel := context.WithTimeout(context.Background(), once)
		done, err := call(ctx, c.on)
		cancel()
		c.s.note(func(f *figures) {
			f.calls++
			if repeated {
				f.repeated++
			}
			if err != nil {
				f.errors[fmt.Sprintf("%s: %s", what, status.Code(err))]++
			}
		})
		if done || err == nil {
			return
		}
		if time.Since(began) > longEnough {
			panic(broken{fmt.Sprintf("%s cannot be repeated: %v", what, err)})
		}
		if status.Code(err) == codes.Unavailable {
			c.dial()
		}
		time.Sleep(between)
	}
}

// until looks until something is true. It panics with a [broken] if that takes too long.
func (c *client) until(what string, ok func() bool) {
	for began := time.Now(); !ok(); time.Sleep(between) {
		if time.Since(began) > longEnough {
			panic(broken{"still not: " + what})
		}
	}
}

// broken is what ends a worker: something that berth does not keep.
type broken struct{ why string }

// status is a container's status; nil if there is no such container.
func (c *client) status(id string) (st *runtimeapi.ContainerStatus) {
	c.try("ContainerStatus", func(ctx context.Context, on *api.Client) (bool, error) {
		resp, err := on.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		st = resp.GetStatus()
		return status.Code(err) == codes.NotFound, err
	})
	return st
}

// timeline is what berth knows of an ID, for a person to read.
func (c *client) timeline(id string) (text string) {
	c.try("Timeline", func(ctx context.Context, on *api.Client) (bool, error) {
		resp, err := on.Node.Timeline(ctx, &berthv1.TimelineRequest{Id: id})
		text = fmt.Sprint(resp)
		return status.Code(err) == codes.NotFound, err
	})
	return text
}

// ends collects from the stream of events with which code each container stopped.
type ends struct {
	mu     sync.Mutex
	codes  map[string]int32
	events int
	wrong  []string
}

// follow subscribes, again and again, until ctx ends.
func (e *ends) follow(ctx context.Context, socket string) {
	for ctx.Err() == nil {
		on, err := api.Dial(socket)
		if err != nil {
			panic(err) // the path is not one of a socket
		}
		stream, err := on.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
		for err == nil {
			var ev *runtimeapi.ContainerEventResponse
			if ev, err = stream.Recv(); err == nil {
				e.take(ev)
			}
		}
		_ = on.Close()
		time.Sleep(between)
	}
}

func (e *ends) take(ev *runtimeapi.ContainerEventResponse) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events++
	for _, st := range ev.GetContainersStatuses() {
		id, code := st.GetId(), st.GetExitCode()
		before, known := e.codes[id]
		switch exited := st.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED; {
		case exited && known && code != before:
			e.wrong = append(e.wrong, fmt.Sprintf("container %s was published as ended with %d, then with %d", id, before, code))
		case !exited && known:
			e.wrong = append(e.wrong, fmt.Sprintf("container %s was published as ended with %d, then as %s", id, before, st.GetState()))
		case exited && ev.GetContainerId() == id && ev.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
			e.codes[id] = code
		}
	}
}

// of is the code with which a container was published as ended.
func (e *ends) of(id string) (code int32, published bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	code, published = e.codes[id]
	return code, published
}

// list is a map of counts as text, the most frequent first.
func list(counts map[string]int) string {
	var names []string
	for name := range counts {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		return strings.Compare(a, b)
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%d %s", counts[name], name)
	}
	return strings.Join(names, ", ")
}
