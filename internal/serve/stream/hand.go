// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/budget"
	"berth/internal/base/retry"
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
		ending: map[string]bool{},
		taken:  make(chan struct{}),
	}
	var err error
	if s.Kind == heldExec {
		if s.target, err = k.service.container(s.ID); err == nil {
			s.Shim, err = k.cfg.Shim(ctx, s.ID)
		}
		if errdefs.IsNotImplemented(err) {
			return nil, notKept("a shim that does not speak ttrpc on a Unix socket cannot be asked without containerd")
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
	refused := h.retired || k.mu.stopped || h.link.UnixConn == nil
	if !refused {
		h.streams[s.id] = s
	}
	k.mu.Unlock()
	if refused {
		return nil, errors.New("the process that was to hold it ends, or is not connected")
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
		go k.expectTaken(s)
	}
	return err
}

// expectTaken gives no new streams to a holder that does not take one in time. What it has already waits for it,
// and another one is started for the next.
func (k *Keeper) expectTaken(s *kept) {
	t := time.NewTimer(readyTimeout)
	defer t.Stop()
	select {
	case <-s.taken:
	case <-s.over:
	case <-s.holder.gone:
	case <-k.service.life.Done():
	case <-t.C:
		k.cfg.Logger.Warn("a process that keeps streams has not taken one in time, and gets no new ones", "dir", s.holder.dir)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.retireLocked(s.holder)
	}
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
	key := Key{Container: s.ID, Exec: w.Exec}
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
	s.mu.Lock()
	over := s.finishing
	if !over {
		s.begins.Add(1) // finish waits for it
	}
	s.mu.Unlock()
	if over {
		return word{}, errGone
	}
	defer s.begins.Done()
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
	return k.service.cfg.Processes.CreateExec(ctx, Key{Container: s.ID, Exec: w.Exec}, r)
}

// endVisit puts on record how an access has ended, and removes what was noted of it once that is on record for
// good. otherwise is for one of which the holder has not said it. After an error nothing was done: it is to be
// called again.
func (k *Keeper) endVisit(s *kept, name string, otherwise error) (err error) {
	if name == "" || strings.ContainsRune(name, '/') || k.service.cfg.AccessLog == nil {
		return nil
	}
	begun, ended := filepath.Join(s.dir, name+visitBegun), filepath.Join(s.dir, name+visitEnded)
	s.mu.Lock()
	again := s.ending[name]
	s.ending[name] = true
	v := s.visits[name]
	s.mu.Unlock()
	if again {
		return nil
	}
	defer func() {
		if err != nil {
			s.mu.Lock()
			delete(s.ending, name)
			s.mu.Unlock()
		}
	}()
	end := visitEnd{Err: "it is not known how it has ended"}
	if otherwise != nil {
		end.Err = otherwise.Error()
	}
	if err := read(ended, &end); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNotWhole) {
		return fmt.Errorf("find out how an access has ended: %w", err)
	}
	forget := func() {
		_ = os.Remove(begun)
		_ = os.Remove(ended)
	}
	if v == nil {
		if v, err = k.resume(begun); err != nil {
			return err
		}
		if v == nil {
			forget()
			return nil
		}
	}
	s.mu.Lock()
	delete(s.visits, name)
	s.mu.Unlock()
	var why error
	if end.Err != "" {
		why = errors.New(end.Err)
	}
	s.recording.Add(1)
	v.End(end.Code, why, end.In, end.Out, func(ok bool) {
		defer s.recording.Done()
		if ok {
			forget()
		} else {
			s.unrecorded.Store(true)
		}
	})
	return nil
}

// resume returns a visit of an earlier berth; nil if there is nothing to be recorded of it any more. The error
// says that this cannot be found out now.
func (k *Keeper) resume(begun string) (Visit, error) {
	var note []byte
	err := read(begun, &note)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil && !errors.Is(err, errNotWhole):
		return nil, fmt.Errorf("find out which access has ended: %w", err)
	}
	var v Visit
	if err == nil {
		v, err = k.service.cfg.AccessLog.Resume(note)
	}
	if err != nil {
		k.cfg.Logger.Warn("it cannot be recorded how an access has ended", "note", begun, "err", err)
		return nil, nil
	}
	return v, nil
}

// finish takes note that a holder has nothing of a stream any more, and ends what may be left of it
// all the same. why says how its accesses have ended of which the holder has not said it. What cannot be found
// out or done now is tried again, until berth stops: the directory then says to the next one that there is
// something to do.
func (k *Keeper) finish(s *kept, why error) {
	s.mu.Lock()
	again := s.finishing
	s.finishing = true
	s.mu.Unlock()
	if again {
		return
	}
	s.begins.Wait()
	life := k.service.life
	for wait := range retry.Doubling(life.Done(), firstWait, lastWait) {
		err := k.finishOnce(s, why)
		if err == nil || life.Err() != nil {
			break
		}
		if wait == firstWait {
			k.cfg.Logger.Warn("a stream that was kept is not finished yet, it is tried again", "stream", s.Kind, "id", s.ID, "err", err)
		}
	}
	if life.Err() != nil {
		return
	}
	s.mu.Lock()
	execs := slices.Clone(s.execs)
	s.mu.Unlock()
	for _, key := range execs { // the holder has deleted it, and whatever else knows it forgets it now
		ctx, cancel := context.WithTimeout(life, stepTimeout)
		_ = k.service.cfg.Processes.DeleteExec(ctx, key)
		cancel()
	}
	k.server.drop(s.offer)
	s.recording.Wait() // the disk of the record may be full
	if life.Err() != nil || s.unrecorded.Load() {
		return // the next berth goes on
	}
	k.remove(s)
}

// finishOnce puts the accesses of a stream on record as ended, and ends its processes. It may be called again.
func (k *Keeper) finishOnce(s *kept, why error) error {
	names, err := visitsIn(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("find out which accesses have ended: %w", err)
	}
	s.mu.Lock()
	names = append(names, slices.Collect(maps.Keys(s.visits))...)
	s.mu.Unlock()
	for _, name := range names {
		if err := k.endVisit(s, name, why); err != nil {
			return err
		}
	}
	left, err := leftovers(filepath.Join(s.dir, execDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, key := range left {
		p := k.service.leftover(key)
		p.dir = filepath.Join(s.dir, execDir, key.String())
		if p.place, err = k.service.enterAnyway(k.service.sessions, s.PodID); err != nil {
			return err // berth stops, and the next one finds it
		}
		p.finish()
	}
	return nil
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
	var over []*kept
	for wait := range retry.Doubling(k.service.life.Done(), firstWait, lastWait) {
		var err error
		if over, err = k.reconcile(h, nil); err == nil {
			break
		}
		if wait == firstWait {
			k.cfg.Logger.Warn("what a process has left that kept streams is not known yet, it is tried again", "dir", h.dir, "err", err)
		}
	}
	if k.service.life.Err() != nil {
		return // the next berth goes on
	}
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
