// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/budget"
)

// take gives the stream of a request to a holder, and reports whether it did: the connection is the
// holder's then, and so is whatever goes wrong. Otherwise berth serves the stream, and it ends with
// berth.
func (k *Keeper) take(w http.ResponseWriter, req *http.Request, o *offer, own *conn) bool {
	if k == nil || !k.cfg.Enabled {
		return false
	}
	s, err := k.prepare(req, o)
	if err != nil {
		if why := (notKept("")); errors.As(err, &why) {
			if _, known := k.said.LoadOrStore(why, true); !known {
				k.cfg.Logger.Info("a stream is not kept, and ends with berth; others for the same reason are not logged", "why", err)
			}
		} else {
			k.cfg.Logger.Warn("a stream cannot be kept, and ends with berth", "why", err)
		}
		return false
	}
	if err := k.give(w, req, s, own); err != nil {
		k.cfg.Logger.Warn("a stream cannot be given to the process that keeps it; its client has to come again", "stream", s.Kind, "id", s.ID, "err", err)
		k.finish(s, err)
	}
	return true
}

// notKept is why a stream is left to berth.
type notKept string

// Error implements error.
func (n notKept) Error() string { return string(n) }

// prepare finds a holder for a stream, and notes in a file what the stream is.
func (k *Keeper) prepare(req *http.Request, o *offer) (*kept, error) {
	switch {
	case o.held == nil:
		return nil, notKept("attached clients are not kept")
	case k.server.cfg.TLS != nil: // whose state is in berth's memory
		return nil, notKept("with TLS (streams.cert_file) no stream is kept")
	case req.ContentLength != 0:
		return nil, notKept("a request that has a body is not kept")
	case o.held.Terminal && !k.cfg.Terminals:
		return nil, notKept("while sessions are recorded (audit.sessions) no terminal is kept")
	}
	ctx, cancel := context.WithTimeout(req.Context(), readyTimeout)
	defer cancel()
	s := &kept{
		held:   *o.held,
		id:     newID(),
		offer:  o,
		over:   make(chan struct{}),
		giving: true,
		visits: map[string]Visit{},
	}
	var err error
	if s.Kind == heldExec {
		if s.target, err = k.service.container(s.ID); err == nil {
			s.Shim, err = k.cfg.Shim(ctx, s.ID)
		}
	} else if s.target, err = k.service.sandbox(s.ID); err == nil {
		s.NetNS = s.target.NetNS
	}
	if err != nil {
		return nil, err
	}
	h, err := k.holder(ctx)
	if err != nil {
		return nil, err
	}
	s.holder, s.dir = h, filepath.Join(h.dir, s.id)
	k.mu.Lock()
	refused := h.retired || k.mu.stopped
	if !refused {
		h.streams[s.id] = s
	}
	k.mu.Unlock()
	if refused {
		return nil, errors.New("the process that was to hold it ends")
	}
	if err = os.Mkdir(s.dir, 0o700); err == nil {
		err = write(filepath.Join(s.dir, streamFile), s.held)
	}
	if err != nil {
		k.remove(s)
		return nil, fmt.Errorf("note what is kept: %w", err)
	}
	k.server.giveAway(o, s.drop)
	return s, nil
}

// give takes the connection from net/http and sends it to the holder.
func (k *Keeper) give(w http.ResponseWriter, req *http.Request, s *kept, own *conn) error {
	head := request(req)
	c, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return err
	}
	defer c.Close() // the holder has a descriptor of its own
	rest, err := buffered.Reader.Peek(buffered.Reader.Buffered())
	if err != nil {
		return err
	}
	socket, err := own.SyscallConn()
	if err != nil {
		return err
	}
	toHolder := s.held
	toHolder.Args = nil
	k.mu.Lock()
	l := s.holder.link
	s.via = l.UnixConn
	k.mu.Unlock()
	if l.UnixConn == nil {
		return fmt.Errorf("the process is not connected: %w", errdefs.ErrUnavailable)
	}
	err = l.send(word{
		Say:    sayTake,
		Stream: s.id,
		Held:   &toHolder,
		Path:   req.URL.Path,
		Head:   append(head, rest...),
	}, socket)
	if err == nil {
		go k.watch(s)
	}
	return err
}

// request writes a request again as it was sent.
func request(req *http.Request) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", req.Method, req.URL.RequestURI(), req.Host)
	_ = req.Header.Write(&b)
	b.WriteString("\r\n")
	return b.Bytes()
}

// answer answers a question of a holder about a stream.
func (k *Keeper) answer(s *kept, w word) (word, error) {
	switch w.Say {
	case sayBegin:
		return k.begin(s, w.Port)
	case sayCreate:
		return word{}, k.create(s, w)
	}
	ctx, cancel := context.WithTimeout(k.service.life, makeTimeout)
	defer cancel()
	key := Key{s.ID, w.Exec}
	err := k.service.cfg.Processes.StartExec(ctx, key)
	if err == nil {
		s.mu.Lock()
		s.execs = append(s.execs, key)
		s.mu.Unlock()
	}
	return word{}, err
}

// begin puts an access into a file and on record, in this order, so that also its end comes to be on
// record, whenever berth is killed.
func (k *Keeper) begin(s *kept, port int32) (word, error) {
	if k.service.cfg.AccessLog == nil {
		return word{}, nil
	}
	name := newID()
	begun := filepath.Join(s.dir, name+visitBegun)
	v, err := k.service.cfg.AccessLog.Begin(Access{
		What:     s.Kind,
		Target:   s.target,
		By:       s.By,
		Args:     s.Args,
		Port:     port,
		Terminal: s.Terminal,
	}, func(note []byte) error {
		if err := write(begun, note); err != nil {
			return fmt.Errorf("note that an access begins: %w", err)
		}
		return nil
	})
	if err != nil {
		_ = os.Remove(begun)
		return word{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.visits[name] = v
	return word{Visit: name}, nil
}

// create makes the process of an exec, with the FIFOs of the holder.
func (k *Keeper) create(s *kept, w word) error {
	if w.Request == nil || s.Kind != heldExec {
		return fmt.Errorf("no process is to be made: %w", errdefs.ErrInvalidArgument)
	}
	ctx, cancel := context.WithTimeout(k.service.life, makeTimeout)
	defer cancel()
	spec, err := k.service.cfg.Processes.Spec(ctx, s.ID)
	if err != nil {
		return fmt.Errorf("read specification of container %s: %w", s.ID, err)
	}
	r := *w.Request
	if r.Process, err = specify(spec, command{args: s.Args, terminal: s.Terminal}); err != nil {
		return fmt.Errorf("container %s: %w", s.ID, err)
	}
	return k.service.cfg.Processes.CreateExec(ctx, Key{s.ID, w.Exec}, r)
}

// endVisit puts on record how an access has ended. otherwise is for one of which the holder has not
// said it.
func (k *Keeper) endVisit(s *kept, name string, otherwise error) {
	if name == "" || strings.ContainsRune(name, '/') || k.service.cfg.AccessLog == nil {
		return
	}
	begun, ended := filepath.Join(s.dir, name+visitBegun), filepath.Join(s.dir, name+visitEnded)
	s.mu.Lock()
	v := s.visits[name]
	delete(s.visits, name)
	s.mu.Unlock()
	if v == nil {
		var note []byte
		err := read(begun, &note)
		if err == nil {
			v, err = k.service.cfg.AccessLog.Resume(note)
		}
		if err != nil {
			k.cfg.Logger.Warn("it cannot be recorded how an access has ended", "id", s.ID, "err", err)
		}
	}
	if v != nil {
		end := visitEnd{Err: "it is not known how it has ended"}
		if otherwise != nil {
			end.Err = otherwise.Error()
		}
		_ = read(ended, &end)
		var err error
		if end.Err != "" {
			err = errors.New(end.Err)
		}
		v.End(end.Code, err, end.In, end.Out)
	}
	_ = os.Remove(begun)
	_ = os.Remove(ended)
}

// finish takes note that a holder has nothing of a stream any more, and ends what may be left of it
// all the same. why says how its accesses have ended of which the holder has not said it.
func (k *Keeper) finish(s *kept, why error) {
	s.mu.Lock()
	again := s.finishing
	s.finishing = true
	s.mu.Unlock()
	if again {
		return
	}
	names, err := visitsIn(s.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		k.cfg.Logger.Warn("it cannot be found out how an access has ended", "dir", s.dir, "err", err)
	}
	for _, name := range names {
		k.endVisit(s, name, why)
	}
	left, _ := leftovers(filepath.Join(s.dir, execDir))
	s.mu.Lock()
	execs := slices.Clone(s.execs)
	s.mu.Unlock()
	for _, key := range left {
		p := k.service.leftover(key)
		p.dir = filepath.Join(s.dir, execDir, key.String())
		p.place, err = k.service.enterAnyway(k.service.sessions, s.PodID)
		if err != nil {
			return // berth stops, and the next one finds it
		}
		p.finish()
	}
	if k.service.life.Err() != nil {
		return
	}
	for _, key := range execs { // the holder has deleted it, and whatever else knows it forgets it now
		ctx, cancel := context.WithTimeout(k.service.life, stepTimeout)
		_ = k.service.cfg.Processes.DeleteExec(ctx, key)
		cancel()
	}
	k.remove(s)
	k.server.drop(s.offer)
}

// remove forgets a stream, of which nothing is left.
func (k *Keeper) remove(s *kept) {
	if err := os.RemoveAll(s.dir); err != nil {
		k.cfg.Logger.Warn("what was noted of a stream cannot be removed", "dir", s.dir, "err", err)
	}
	k.mu.Lock()
	_, known := s.holder.streams[s.id]
	delete(s.holder.streams, s.id)
	s.holder.idle = time.Now()
	k.mu.Unlock()
	if known {
		close(s.over)
	}
}

// bury ends what a holder has left whose process has ended.
func (k *Keeper) bury(h *holderOf) {
	over := k.reconcile(h, nil)
	k.lose(h)
	var ends sync.WaitGroup
	for _, s := range over {
		ends.Go(func() { k.finish(s, errNoHolder) })
	}
	ends.Wait()
	k.mu.Lock()
	left := slices.Collect(maps.Values(h.streams))
	k.mu.Unlock()
	for _, s := range left { // the holder said before its end that they are over
		select {
		case <-s.over:
		case <-k.service.life.Done():
			return // the next berth goes on
		}
	}
	if b, err := tail(filepath.Join(h.dir, holderOutput)); err == nil && len(b) > 0 {
		k.cfg.Logger.Warn("a process that kept streams has ended, and said this", "output", string(b))
	}
	if err := os.RemoveAll(h.dir); err != nil {
		k.cfg.Logger.Warn("the directory of a process that kept streams cannot be removed", "dir", h.dir, "err", err)
	}
	k.forget(h)
	if k.cfg.Killed != nil {
		k.cfg.Killed()
	}
}

// tail returns the end of a file.
func tail(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > keptOutput {
		_, _ = f.Seek(-keptOutput, io.SeekEnd)
	}
	return io.ReadAll(io.LimitReader(f, keptOutput))
}

// budgetOf is what a stream has a place in.
func (k *Keeper) budgetOf(s held) *budget.Budget {
	if s.Kind == heldForward {
		return k.service.forwards
	}
	return k.service.streams
}
