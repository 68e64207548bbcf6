// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/budget"
	"berth/internal/base/peercred"
)

const (
	// berthTimeout is how long a connection that is forwarded waits for berth to come back, since its
	// access has to be on record before it begins.
	berthTimeout = 10 * time.Second
	// cameTimeout is how long a holder waits for the berth that has started it.
	cameTimeout = 10 * time.Second
	// busyInterval is how often a holder says which port-forwards are in use.
	busyInterval = 10 * time.Second
)

// Tasks are the exec processes of one shim. It is a part of Processes, for which containerd is not
// needed.
type Tasks interface {
	WaitExec(ctx context.Context, key Key) (code uint32, err error)
	KillExec(ctx context.Context, key Key) error
	DeleteExec(ctx context.Context, key Key) error
	CloseExecStdin(ctx context.Context, key Key) error
	ResizeExec(ctx context.Context, key Key, width, height uint16) error
	// Close ends the connection with the shim.
	Close()
}

// HolderConfig is what a holder works on.
type HolderConfig struct {
	Dir      string            // of the holder, with the directories of its streams
	Listener *net.UnixListener // on which berths come
	Version  string            // of this program
	Tasks    func(s Shim) Tasks
	Logger   *slog.Logger
}

// Hold keeps streams that a berth gives it, and outlives that berth. It returns when it has no stream
// and there is no berth that may give it one, or after ctx has ended, of which its clients are told.
func Hold(ctx context.Context, cfg HolderConfig) error {
	return newHolder(cfg).run(ctx)
}

// holder is a process that keeps streams.
type holder struct {
	cfg    HolderConfig
	server *Server // of the clients
	shares shares
	handed *handed
	over   chan struct{} // closed when there is nothing left to do

	mu struct {
		sync.Mutex
		berth   link          // nil within: no berth is there
		changed chan struct{} // closed when berth changes
		retired bool
		streams map[string]*carried
		open    int    // connections, also those whose streams have ended
		last    uint64 // the number of the last question
		asked   map[uint64]chan word
	}
}

func newHolder(cfg HolderConfig) *holder {
	h := &holder{
		cfg:    cfg,
		shares: newShares(),
		handed: &handed{conns: make(chan net.Conn), closed: make(chan struct{})},
		over:   make(chan struct{}),
	}
	// The server needs the shares of this service. Each stream has one of its own.
	h.server = NewServer(ServerConfig{Logger: cfg.Logger}, newService(Config{Logger: cfg.Logger}, h.shares))
	h.server.mu.offers = map[string]*offer{}
	h.mu.changed = make(chan struct{})
	h.mu.streams = map[string]*carried{}
	h.mu.asked = map[uint64]chan word{}
	return h
}

func (h *holder) run(ctx context.Context) error {
	serving, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error, 1)
	go func() { served <- h.server.answer(serving, h.handed) }()
	go h.accept()
	came := time.AfterFunc(cameTimeout, h.endIfIdle)
	defer came.Stop()
	tick := time.NewTicker(busyInterval)
	defer tick.Stop()
	var err error
	for {
		select {
		case <-tick.C:
			h.sayBusy()
			continue
		case <-h.over:
		case err = <-served:
		case <-ctx.Done():
			h.farewell()
		}
		_ = h.cfg.Listener.Close()
		h.cleanUp()
		return err
	}
}

// cleanUp removes the directory, unless the next berth has something to learn from it.
func (h *holder) cleanUp() {
	entries, err := os.ReadDir(h.cfg.Dir)
	if err != nil || slices.ContainsFunc(entries, os.DirEntry.IsDir) {
		return
	}
	_ = os.RemoveAll(h.cfg.Dir)
}

// farewell tells the clients that their streams end, and ends their processes.
func (h *holder) farewell() {
	h.mu.Lock()
	h.mu.retired = true
	for _, c := range h.mu.streams {
		c.stop()
	}
	h.mu.Unlock()
	h.endIfIdle()
	select {
	case <-h.over:
	case <-time.After(stopTimeout):
	}
}

// accept lets berths in. One that comes takes the place of the one that was there.
func (h *holder) accept() {
	wait := firstWait
	for {
		conn, err := h.cfg.Listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // there are too many descriptors, for example
			if wait == firstWait {
				h.cfg.Logger.Warn("berth cannot be let in now", "err", err)
			}
			time.Sleep(wait)
			wait = min(2*wait, time.Second)
			continue
		}
		wait = firstWait
		if l := (link{conn}); isOwn(l) {
			h.meet(l)
		} else {
			_ = conn.Close()
		}
	}
}

// isOwn reports whether a peer is of the same user.
func isOwn(l link) bool {
	cred, err := peercred.Of(l)
	return err == nil && int(cred.Uid) == os.Geteuid()
}

// meet says to a berth which streams there are, and listens to it from then on.
func (h *holder) meet(l link) {
	h.mu.Lock()
	before := h.mu.berth
	// Whatever is said of a stream from now on comes behind it.
	if h.greetLocked(l) != nil {
		h.mu.Unlock()
		_ = l.Close()
		return
	}
	h.useLocked(l)
	h.mu.Unlock()
	if before.UnixConn != nil {
		_ = before.Close()
	}
	go h.listen(l)
}

// greetLocked says which streams there are, in as many words as it takes.
func (h *holder) greetLocked(l link) error {
	hello := word{Say: sayHello, Version: h.cfg.Version}
	for part := range slices.Chunk(slices.Collect(maps.Keys(h.mu.streams)), maxNamed) {
		if hello.Streams != nil {
			hello.More = true
			if err := l.send(hello, nil); err != nil {
				return err
			}
		}
		hello.Streams, hello.More = part, false
	}
	return l.send(hello, nil)
}

// useLocked takes note of another berth, or of none.
func (h *holder) useLocked(l link) {
	h.mu.berth = l
	close(h.mu.changed)
	h.mu.changed = make(chan struct{})
	for call, answer := range h.mu.asked { // nobody answers what was asked before
		close(answer)
		delete(h.mu.asked, call)
	}
}

// listen hears what a berth says until it is gone.
func (h *holder) listen(l link) {
	buf := make([]byte, maxWord)
	for {
		w, socket, err := l.receive(buf)
		if err != nil {
			break
		}
		h.hear(w, socket)
	}
	_ = l.Close()
	h.mu.Lock()
	if h.mu.berth == l {
		h.useLocked(link{})
	}
	h.mu.Unlock()
	h.endIfIdle()
}

// hear acts on what berth says.
func (h *holder) hear(w word, socket *os.File) {
	h.mu.Lock()
	c := h.mu.streams[w.Stream]
	h.mu.Unlock()
	switch w.Say {
	case sayTake:
		if err := h.take(w, socket); err != nil {
			h.cfg.Logger.Warn("a stream cannot be kept", "stream", w.Stream, "err", err)
			h.tell(word{Say: sayOver, Stream: w.Stream})
		} else {
			h.tell(word{Say: sayTook, Stream: w.Stream})
		}
	case sayEnd:
		if c != nil {
			c.end()
		}
	case sayDrop:
		if c != nil {
			_ = c.conn.Close()
		}
	case sayRetire:
		h.mu.Lock()
		h.mu.retired = true
		h.mu.Unlock()
		h.endIfIdle()
	case sayAnswer:
		h.mu.Lock()
		answer := h.mu.asked[w.Call]
		delete(h.mu.asked, w.Call)
		h.mu.Unlock()
		if answer != nil {
			answer <- w
		}
	}
	if socket != nil {
		_ = socket.Close() // take has made a copy
	}
}

// endIfIdle ends the holder when it has no stream, each client has the end of its own, and no berth
// may give it one.
func (h *holder) endIfIdle() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.mu.streams) == 0 && h.mu.open == 0 && (h.mu.retired || h.mu.berth.UnixConn == nil) && !isClosed(h.over) {
		close(h.over)
	}
}

// tell says something to berth, if it is there: it finds everything else in files.
func (h *holder) tell(w word) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.berth.UnixConn != nil {
		_ = h.mu.berth.send(w, nil)
	}
}

// errAway is the error of what needs berth while that is not there.
var errAway = fmt.Errorf("berth was stopped or restarted: %w", errdefs.ErrUnavailable)

// ask asks berth, and waits for its answer. The error wraps errAway if berth goes away meanwhile.
func (h *holder) ask(ctx context.Context, w word) (word, error) {
	answer := make(chan word, 1)
	h.mu.Lock()
	l := h.mu.berth
	if l.UnixConn == nil {
		h.mu.Unlock()
		return word{}, errAway
	}
	h.mu.last++
	w.Call = h.mu.last
	h.mu.asked[w.Call] = answer
	h.mu.Unlock()
	if err := l.send(w, nil); err != nil {
		return word{}, errors.Join(errAway, err)
	}
	select {
	case a, ok := <-answer:
		switch {
		case !ok:
			return word{}, errAway
		case a.Err != "":
			return word{}, errors.New(a.Err)
		}
		return a, nil
	case <-ctx.Done():
		h.mu.Lock()
		delete(h.mu.asked, w.Call)
		h.mu.Unlock()
		return word{}, ctx.Err()
	}
}

// askPatiently is ask, which waits a moment for the next berth.
func (h *holder) askPatiently(ctx context.Context, w word) (word, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, berthTimeout, errAway)
	defer cancel()
	for {
		h.mu.Lock()
		changed := h.mu.changed
		h.mu.Unlock()
		a, err := h.ask(ctx, w)
		if !errors.Is(err, errAway) {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return a, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return word{}, context.Cause(ctx)
		}
	}
}

// sayBusy says which port-forwards were in use since the last time.
func (h *holder) sayBusy() {
	var busy []string
	h.mu.Lock()
	for id, c := range h.mu.streams {
		if at := c.offer.busy.Load(); c.held.Kind == heldForward && at != c.busy {
			c.busy = at
			busy = append(busy, id)
		}
	}
	h.mu.Unlock()
	for part := range slices.Chunk(busy, maxNamed) {
		h.tell(word{Say: sayBusy, Streams: part})
	}
}

// budgetOf is what a stream has a place in.
func (h *holder) budgetOf(s *held) *budget.Budget {
	if s.Kind == heldForward {
		return h.shares.forwards
	}
	return h.shares.streams
}

// take begins to keep a stream.
func (h *holder) take(w word, socket *os.File) error {
	if w.Held == nil || socket == nil || w.Stream == "" || w.Stream != filepath.Base(w.Stream) {
		return errors.New("berth has not said what it is")
	}
	below, err := net.FileConn(socket)
	if err != nil {
		return fmt.Errorf("take the connection: %w", err)
	}
	tcp, ok := below.(*net.TCPConn)
	if !ok {
		_ = below.Close()
		return errors.New("the connection is not one of TCP")
	}
	c := &carried{
		holder: h,
		id:     w.Stream,
		dir:    filepath.Join(h.cfg.Dir, w.Stream),
		path:   w.Path,
		held:   *w.Held,
		conn:   newConn(tcp, h.server),
		ended:  make(chan struct{}),
		idle:   make(chan struct{}),
	}
	execs := filepath.Join(c.dir, execDir)
	if err := os.Mkdir(execs, 0o700); err != nil {
		_ = tcp.Close()
		return fmt.Errorf("make directory of exec processes: %w", err)
	}
	c.service = newService(Config{
		Dir:       execs,
		Target:    c.target,
		Processes: c,
		Logger:    h.cfg.Logger,
		AccessLog: c,
	}, h.shares)
	if c.held.Kind == heldExec {
		c.Tasks = h.cfg.Tasks(c.held.Shim)
	}
	c.offer = c.makeOffer()
	h.server.expect(w.Path, c.offer)
	h.mu.Lock()
	h.mu.streams[c.id] = c
	h.mu.open++
	h.mu.Unlock()
	context.AfterFunc(c.conn.over, h.closed)
	c.conn.redeemed.Store(true) // it has asked for its stream
	h.server.add(c.conn)
	context.AfterFunc(c.conn.gone, c.finish)
	if !h.handed.put(&gate{Conn: c.conn, server: h.server, open: true, line: w.Head}) {
		_ = c.conn.Close()
	}
	return nil
}

// closed takes note that the connection of a stream is closed.
func (h *holder) closed() {
	h.mu.Lock()
	h.mu.open--
	h.mu.Unlock()
	h.endIfIdle()
}

// handed is a listener for connections that berth has accepted.
type handed struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *handed) put(c net.Conn) bool {
	select {
	case l.conns <- c:
		return true
	case <-l.closed:
		return false
	}
}

// Accept returns the next connection.
func (l *handed) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (l *handed) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr returns no address worth knowing.
func (l *handed) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "berth"} }

// makeOffer makes what serves the one request of a stream.
func (c *carried) makeOffer() *offer {
	of := c.holder.budgetOf(&c.held)
	of.TakeAnyway(c.held.PodID, 1)
	o := &offer{of: of, pod: c.held.PodID, until: time.Now().Add(urlLifetime)}
	var serve http.HandlerFunc
	if c.held.Kind == heldForward {
		serve = c.forwards(o)
	} else {
		serve = c.exec()
	}
	o.serve = func(w http.ResponseWriter, req *http.Request) {
		if c.enter() {
			defer c.leave()
			serve(w, req)
		}
	}
	o.touch()
	return o
}

// expect makes a path one that is served.
func (s *Server) expect(path string, o *offer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.offers[path] = o
}

// retract gives back what a stream has, whether its client has asked for it or not.
func (s *Server) retract(path string, o *offer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.offers[path] == o {
		delete(s.mu.offers, path)
		o.of.Give(o.pod, 1)
	}
	s.dropLocked(o)
}
