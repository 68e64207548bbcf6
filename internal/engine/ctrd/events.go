// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"berth/internal/base/connection"
	"berth/internal/base/exit"
	"berth/internal/base/retry"
)

const (
	firstReconnect = 100 * time.Millisecond
	// slowestReconnect is the longest wait while containerd does not answer: clients wait for it.
	slowestReconnect = time.Second
	// slowestRelist is the longest one while it answers, and cannot be compared with.
	slowestRelist = 30 * time.Second
	// followTimeout bounds the question whether containerd answers.
	followTimeout = 10 * time.Second
)

// Listener is called for containerd's event stream. Its functions must not block, except for
// Connected.
type Listener struct {
	// Exited is called when the init process of a container has ended.
	Exited func(exit.Fact)
	// OOM is called when the OOM killer fired in a container's control group.
	OOM func(id string)
	// Image is called when an image was made, changed or removed.
	Image func(name string)
	// Answered is called with the UUID of a containerd that has answered, "" if it has none, before
	// any other call to it. After an error it is not used, and asked again later. It may be nil.
	Answered func(uuid string) error
	// Connected is called after each new subscription, beside the reading of events, to look up
	// earlier changes. After an error the subscription is made anew. ctx ends with the subscription.
	Connected func(ctx context.Context) error
	// Lost is called with the reason when a subscription breaks.
	Lost func(err error)
}

// Follow keeps a subscription to containerd's events until ctx ends. It waits for a containerd that
// is yet to be started, and opens and closes the connection as containerd answers.
func (c *Containerd) Follow(ctx context.Context, l Listener) error {
	defer c.stop()
	c.client.Wait(ctx)
	wait := firstReconnect
	for ctx.Err() == nil {
		answered := false
		err := c.follow(ctx, l, func() { answered = true }, func() { wait = firstReconnect })
		if ctx.Err() != nil {
			return nil
		}
		if !answered {
			c.client.Set(err)
			wait = min(wait, slowestReconnect)
		}
		l.Lost(err)
		retry.Sleep(ctx.Done(), wait)
		wait = min(2*wait, slowestRelist)
	}
	return nil
}

// follow keeps one subscription until it breaks. answers is called once containerd has answered,
// and works once everything was compared.
func (c *Containerd) follow(ctx context.Context, l Listener, answers, works func()) error {
	ctx, cancel := context.WithCancel(connection.Namespaced(ctx))
	defer cancel()
	probing := connection.Asking(ctx)
	in := fmt.Sprintf("namespace==%s,", connection.Namespace)
	ch, errs := c.client.Asked().EventService().Subscribe(probing,
		in+`topic=="/tasks/exit"`, in+`topic=="/tasks/oom"`, in+`topic~="^/images/"`)
	// Subscribe does not tell when a containerd that does not answer gets it: this call does. It is
	// another gRPC stream, so the two are not ordered: containerd may take the subscription after
	// it has answered, and changes in between come with no event. The kernel and the audit report
	// such an exit all the same.
	uuid, err := probe(probing, c.client)
	if err != nil {
		return err
	}
	if l.Answered != nil {
		if err := l.Answered(uuid); err != nil {
			return err
		}
	}
	answers()
	c.client.Set(nil)
	c.following.Store(true)
	defer c.following.Store(false)
	// Connected runs beside the reading of events, because containerd's queue of events is bounded.
	listed := make(chan error, 1)
	go func() { listed <- l.Connected(ctx) }()
	defer func() {
		cancel()
		if listed != nil {
			c.log.Debug("the relist ended with its subscription", "err", <-listed)
		}
	}()
	for {
		select {
		case err := <-listed:
			listed = nil
			// it has gone away, and the relist noticed that before the events did
			if errdefs.IsUnavailable(err) {
				c.client.Set(err)
			}
			if err != nil {
				return err
			}
			works()
		case e := <-ch:
			if e != nil {
				c.dispatch(e, l)
			}
		case err := <-errs:
			if ctx.Err() != nil {
				return ctx.Err() // berth stops, and the connection is there for those that are closed later
			}
			if err == nil {
				err = errors.New("the stream ended")
			}
			err = fmt.Errorf("read containerd's events: %w", connection.Native(err))
			c.client.Set(err) // the next one to answer may be another containerd
			return err
		}
	}
}

// Publishes implements [pod.Tasks].
func (c *Containerd) Publishes() bool { return c.following.Load() }

// probe asks containerd for its UUID, which it answers at once, from its directory, and for its
// version, because another one may answer on each connection. The error is [TooOldError] if berth
// cannot work with it.
func probe(ctx context.Context, conn *connection.Connection) (uuid string, err error) {
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	resp, err := conn.Asked().IntrospectionService().Server(ctx)
	if err != nil {
		return "", fmt.Errorf("containerd does not answer: %w", connection.Native(err))
	}
	if c, _ := conn.Asked().Conn().(*grpc.ClientConn); c == nil {
		return resp.GetUUID(), nil // one in memory, of this berth
	}
	v, err := conn.Asked().Version(ctx)
	switch is, known := numbersOf(v.Version); {
	case err != nil:
		return "", fmt.Errorf("containerd does not answer: %w", connection.Native(err))
	case known && slices.Compare(is[:], oldest[:]) < 0:
		return "", TooOldError(v.Version)
	}
	return resp.GetUUID(), nil
}

func (c *Containerd) dispatch(e *events.Envelope, l Listener) {
	v, err := typeurl.UnmarshalAny(e.Event)
	if err != nil {
		c.log.Warn("event of containerd not decoded", "topic", e.Topic, "err", err)
		return
	}
	switch ev := v.(type) {
	case *eventtypes.TaskExit:
		if ev.ID != ev.ContainerID {
			return // an exec process
		}
		if c.replaced.earlier(ev.ContainerID, ev.Pid) {
			return
		}
		at := ev.ExitedAt.AsTime()
		if at.Unix() <= 0 {
			at = e.Timestamp // the clean-up after a dead shim did not know when it ended
		}
		l.Exited(exit.Fact{
			ID:       ev.ContainerID,
			Code:     ev.ExitStatus,
			Measured: !guessed(ev.ExitStatus),
			At:       c.clock.Instant(at),
			Origin:   exit.Stream,
		})
	case *eventtypes.TaskOOM:
		l.OOM(ev.ContainerID)
	case *eventtypes.ImageCreate:
		l.Image(ev.Name)
	case *eventtypes.ImageUpdate:
		l.Image(ev.Name)
	case *eventtypes.ImageDelete:
		l.Image(ev.Name)
	}
}

// guessed reports whether a code on the stream may be containerd's own invention. When a shim has
// died, containerd cleans up after it and publishes 137 (or 255, if that fails), regardless of the
// real code, and nothing in the event distinguishes that from a shim's measurement. A living shim
// also answers a wait and a question about the task with its measurement.
func guessed(code uint32) bool { return code == 128+uint32(unix.SIGKILL) || code == exit.CodeUnknown }
