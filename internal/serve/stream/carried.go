// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/heart/pod"
)

// carried is a stream that a holder has. It has a Service of its own, for which it is everything
// outside: what needs containerd it asks of berth, and everything else of the shim.
type carried struct {
	Tasks   // nil for a port-forward
	holder  *holder
	id      string
	dir     string
	path    string // of its URL
	held    held
	conn    *conn
	service *Service
	offer   *offer
	busy    int64         // when something came or went, as berth knows it; guarded by the holder's mutex
	ended   chan struct{} // closed when the container or the pod has ended

	mu       sync.Mutex
	hasEnded bool
	stopped  bool
	finished bool          // nothing begins any more
	using    int           // the request, and accesses
	idle     chan struct{} // closed when finished and not used
}

// exec serves the request of an exec.
func (c *carried) exec() http.HandlerFunc {
	return remoteCall{
		streams:  streams{stdin: c.held.Stdin, stdout: c.held.Stdout, stderr: c.held.Stderr},
		terminal: c.held.Terminal,
		patience: c.holder.server.patience,
		run: func(ctx context.Context, to client) error {
			// What is executed berth knows.
			return c.service.Exec(ctx, c.held.ID, nil, to.stdin, to.stdout, to.stderr, c.held.Terminal, to.resize)
		},
	}.serve
}

// forwards serves the request of a port-forward.
func (c *carried) forwards(o *offer) http.HandlerFunc {
	return forwardCall{
		ports:    c.held.Ports,
		patience: c.holder.server.patience,
		run: func(ctx context.Context, port int32, stream io.ReadWriteCloser) error {
			return c.service.PortForward(ctx, c.held.ID, port, touching{stream, o})
		},
	}.serve
}

// enter begins something for the client, unless it is gone.
func (c *carried) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.finished {
		c.using++
	}
	return !c.finished
}

func (c *carried) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.using--
	c.checkIdleLocked()
}

func (c *carried) checkIdleLocked() {
	if c.finished && c.using == 0 {
		close(c.idle)
	}
}

// end takes note that the container or the pod has ended.
func (c *carried) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hasEnded {
		c.hasEnded = true
		close(c.ended)
	}
}

// stop ends the stream, and tells its client so.
func (c *carried) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		c.stopped = true
		close(c.service.stopping)
	}
}

// finish is called when the connection is closed. When nothing is left of the stream, it says so to
// berth and forgets it.
func (c *carried) finish() {
	c.mu.Lock()
	c.finished = true
	c.checkIdleLocked()
	c.mu.Unlock()
	<-c.idle
	c.service.retire()
	if c.Tasks != nil {
		c.Tasks.Close()
	}
	c.noteCutOff()
	h := c.holder
	h.server.retract(c.path, c.offer)
	h.mu.Lock()
	delete(h.mu.streams, c.id)
	h.mu.Unlock()
	h.tell(word{Say: sayOver, Stream: c.id})
	h.endIfIdle()
}

// noteCutOff notes the end of each access that berth put on record, and of which the holder was not told:
// berth went away, or the client did, before berth had answered.
func (c *carried) noteCutOff() {
	names, err := visitsIn(c.dir)
	if err != nil {
		c.holder.cfg.Logger.Warn("it cannot be found out whether an access was cut off", "stream", c.id, "err", err)
	}
	for _, name := range names {
		path := filepath.Join(c.dir, name+visitEnded)
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			continue // it has an end, or nobody knows: then the end that is there counts
		}
		if err := write(path, visitEnd{Err: "it was cut off as it began"}); err != nil {
			c.holder.cfg.Logger.Warn("it cannot be noted that an access was cut off", "stream", c.id, "err", err)
		}
	}
}

// retire returns when nothing is under way any more, and lets nothing begin.
func (s *Service) retire() {
	s.mu.Lock()
	s.mu.stopped = true
	s.checkIdleLocked()
	s.mu.Unlock()
	<-s.mu.idle
	s.end()
}

// target describes the container or the pod of the stream, whatever it is called.
func (c *carried) target(string) (pod.Target, error) {
	return pod.Target{
		ID:      c.held.ID,
		PodID:   c.held.PodID,
		NetNS:   c.held.NetNS,
		Running: true,
		Ended:   c.ended,
	}, nil
}

// Spec implements Processes. Of what the process is really made, berth knows.
func (c *carried) Spec(context.Context, string) (*specs.Spec, error) {
	return &specs.Spec{Process: &specs.Process{}}, nil
}

// CreateExec implements Processes.
func (c *carried) CreateExec(ctx context.Context, key Key, r Request) error {
	r.Process = nil
	_, err := c.holder.ask(ctx, word{Say: sayCreate, Stream: c.id, Exec: key.Exec, Request: &r})
	return err
}

// StartExec implements Processes.
func (c *carried) StartExec(ctx context.Context, key Key) error {
	_, err := c.holder.ask(ctx, word{Say: sayStart, Stream: c.id, Exec: key.Exec})
	return err
}

// Begin implements AccessLog. berth keeps the note.
func (c *carried) Begin(a Access, _ func([]byte) error) (Visit, error) {
	if !c.enter() {
		return nil, errGone
	}
	ask := c.holder.ask
	if c.held.Kind == heldForward {
		ask = c.holder.askPatiently
		// What waits for berth counts as what is there: it is in memory as well.
		if err := c.holder.shares.ports.Take(c.held.PodID, 1); err != nil {
			c.leave()
			return nil, err
		}
		defer c.holder.shares.ports.Give(c.held.PodID, 1)
	}
	answer, err := ask(c.conn.gone, word{Say: sayBegin, Stream: c.id, Port: a.Port})
	if err != nil {
		c.leave()
		return nil, err
	}
	return carriedVisit{c, answer.Visit}, nil
}

// Resume implements AccessLog. What a holder has lost is lost with it.
func (c *carried) Resume([]byte) (Visit, error) {
	return nil, fmt.Errorf("resume an access: %w", errdefs.ErrNotImplemented)
}

// carriedVisit is an access of a stream that a holder has.
type carriedVisit struct {
	c    *carried
	name string // "" if there is no record
}

// Wrote implements Visit.
func (carriedVisit) Wrote([]byte) {}

// Resized implements Visit.
func (carriedVisit) Resized(_, _ uint16) {}

// End implements Visit. It writes to a file how the access has ended, for this berth or the next one.
func (v carriedVisit) End(code int32, err error, in, out int64, _ func(bool)) {
	defer v.c.leave()
	if v.name == "" {
		return
	}
	end := visitEnd{Code: code, In: in, Out: out}
	if err != nil {
		end.Err = err.Error()
	}
	if err := write(filepath.Join(v.c.dir, v.name+visitEnded), end); err != nil {
		v.c.holder.cfg.Logger.Warn("it cannot be noted how an access has ended", "stream", v.c.id, "err", err)
	}
	v.c.holder.tell(word{Say: sayEnded, Stream: v.c.id, Visit: v.name})
}
