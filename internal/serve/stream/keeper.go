// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/bits"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/retry"
	"berth/internal/heart/pod"
)

const (
	// readyTimeout is how long a stream waits for the holder that it is to have. Then berth serves it.
	readyTimeout = 5 * time.Second
	// adoptTimeout is how long new streams wait for berth to find the holders of an earlier berth.
	adoptTimeout = 2 * time.Second
	// idleHolder is how long a holder stays without a stream.
	idleHolder = time.Minute
	// maxErr is how much of an error is said to a holder, in bytes.
	maxErr = 4 << 10
	// keptOutput is how much of what a holder has said last is logged when it was killed.
	keptOutput = 2 << 10
)

// KeeperConfig says how streams are given to a holder.
type KeeperConfig struct {
	// Dir is for the directories of holders. It belongs to this package alone.
	Dir string
	// Enabled says that new streams are given to a holder. Those that an earlier berth has given to
	// one are looked after in any case.
	Enabled bool
	// Terminals says that this holds for commands with a terminal, too. What such a terminal shows is
	// seen by the holder alone.
	Terminals bool
	// Version is that of this berth: holders of another version get no new streams.
	Version string
	// Spawn starts a process that runs [Hold] with the directory and the listener. It does not wait
	// for the process, which must outlive berth.
	Spawn func(dir string, lis *os.File) error
	// Killed is called when the process of a holder has ended, and nothing is left of it here. It may
	// be nil.
	Killed func()
	// Shim says how the shim of a container is reached without containerd.
	Shim   func(ctx context.Context, container string) (Shim, error)
	Logger *slog.Logger
}

// Keeper gives streams to a holder, and looks after what holders have: it answers their questions,
// keeps the records of access and the places of their streams, says which containers have ended, and
// ends what a holder has left that was killed.
type Keeper struct {
	cfg     KeeperConfig
	service *Service
	server  *Server
	adopted chan struct{} // closed when what an earlier berth has left was looked at
	said    sync.Map      // why streams were not given to a holder
	// spawning are the holders that are being started. None begins once mu.stopped is set.
	spawning sync.WaitGroup

	mu struct {
		sync.Mutex
		stopped bool
		current *holderOf // to which new streams go; nil for none
		all     map[*holderOf]bool
	}
}

// holderOf is a holder, as berth sees it.
type holderOf struct {
	keeper *Keeper
	dir    string
	ready  chan struct{} // closed when it has said which streams it has
	gone   chan struct{} // closed when its process has ended

	// Of follow alone:
	unlisted uint // how many times in a row its streams could not be listed

	// Guarded by the keeper's mutex.
	link    link // nil within: there is no connection
	retired bool
	idle    time.Time // since when it has no stream
	streams map[string]*kept
	greeted bool
}

// kept is a stream that a holder has, as berth sees it.
type kept struct {
	held
	holder *holderOf
	id     string
	dir    string
	offer  *offer
	target pod.Target // none if it is not there any more
	over   chan struct{}

	// Guarded by the keeper's mutex: of a stream that this berth gives to the holder.
	giving bool
	via    *net.UnixConn // over which it was given; nil before that

	taken     chan struct{} // closed when the holder has said that it has the stream
	takenOnce sync.Once
	begins    sync.WaitGroup // of accesses that are being put on record; none begins once it is finishing
	recording sync.WaitGroup // of ends that are not on record for good
	// unrecorded says that an end did not come to be on record before berth stops. What was noted of it stays.
	unrecorded atomic.Bool

	mu        sync.Mutex
	visits    map[string]Visit // that have begun under this berth
	ending    map[string]bool  // visits whose end this berth has put on record, or is about to
	execs     []Key            // that were started
	finishing bool
}

// NewKeeper makes a keeper, which works when it runs. It becomes the server's.
func NewKeeper(cfg KeeperConfig, server *Server) (*Keeper, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of holders of streams: %w", err)
	}
	k := &Keeper{
		cfg:     cfg,
		service: server.service,
		server:  server,
		adopted: make(chan struct{}),
	}
	k.mu.all = map[*holderOf]bool{}
	server.keeper = k
	return k, nil
}

// Run finds the holders that an earlier berth has left, and looks after all of them until ctx ends.
// It returns nil. The containers must be known. Call it once.
func (k *Keeper) Run(ctx context.Context) error {
	entries, err := os.ReadDir(k.cfg.Dir)
	if err != nil {
		k.cfg.Logger.Warn("the streams that an earlier berth has left cannot be looked for", "err", err)
	}
	var found []*holderOf
	for _, e := range entries {
		h := k.newHolder(filepath.Join(k.cfg.Dir, e.Name()))
		k.mu.Lock()
		k.mu.all[h] = true
		k.mu.Unlock()
		go k.follow(ctx, h)
		found = append(found, h)
	}
	go func() {
		defer close(k.adopted)
		t := time.NewTimer(adoptTimeout)
		defer t.Stop()
		for _, h := range found {
			select {
			case <-h.ready:
			case <-h.gone:
			case <-t.C:
				return
			}
		}
	}()
	tick := time.NewTicker(idleHolder)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			k.retireIdle()
		case <-ctx.Done():
			k.stop()
			k.spawning.Wait()
			return nil
		}
	}
}

// stop leaves the holders to the next berth.
func (k *Keeper) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.stopped = true
	for h := range k.mu.all {
		if h.link.UnixConn != nil {
			_ = h.link.Close()
		}
	}
}

// Held returns how many streams holders have.
func (k *Keeper) Held() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for h := range k.mu.all {
		n += len(h.streams)
	}
	return n
}

func (k *Keeper) newHolder(dir string) *holderOf {
	return &holderOf{
		keeper:  k,
		dir:     dir,
		ready:   make(chan struct{}),
		gone:    make(chan struct{}),
		idle:    time.Now(),
		streams: map[string]*kept{},
	}
}

// retireIdle lets the current holder go that has had no stream for a while.
func (k *Keeper) retireIdle() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.mu.current; h != nil && len(h.streams) == 0 && time.Since(h.idle) >= idleHolder {
		k.retireLocked(h)
	}
}

// retireLocked makes a holder end once it has no stream.
func (k *Keeper) retireLocked(h *holderOf) {
	h.retired = true
	if k.mu.current == h {
		k.mu.current = nil
	}
	if h.link.UnixConn != nil {
		_ = h.link.send(word{Say: sayRetire}, nil)
	}
}

// warm sees to it that there is a holder, for a stream that is about to come.
func (k *Keeper) warm(h *held) {
	if k == nil || h == nil || !k.cfg.Enabled || isClosed(k.adopted) && k.hasCurrent() {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(k.service.life, readyTimeout)
		defer cancel()
		_, _ = k.holder(ctx)
	}()
}

func (k *Keeper) hasCurrent() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mu.current != nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// holder returns the holder for new streams, which it starts if there is none.
func (k *Keeper) holder(ctx context.Context) (*holderOf, error) {
	select {
	case <-k.adopted:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	k.mu.Lock()
	h := k.mu.current
	if k.mu.stopped {
		k.mu.Unlock()
		return nil, fmt.Errorf("berth stops: %w", errdefs.ErrUnavailable)
	}
	if h == nil {
		h = k.newHolder(filepath.Join(k.cfg.Dir, newID()))
		k.mu.current, k.mu.all[h] = h, true
		k.spawning.Add(1)
		go k.start(h)
	}
	k.mu.Unlock()
	select {
	case <-h.ready:
		return h, nil
	case <-h.gone:
		return nil, errors.New("the process that was to hold it has ended")
	case <-ctx.Done():
		return nil, fmt.Errorf("the process that was to hold it does not answer: %w", ctx.Err())
	}
}

// start starts a holder and follows it.
func (k *Keeper) start(h *holderOf) {
	err := k.spawn(h.dir)
	k.spawning.Done()
	if err != nil {
		k.cfg.Logger.Warn("the process that keeps streams cannot be started: they end with berth", "err", err)
		k.lose(h)
		k.forget(h)
		_ = os.RemoveAll(h.dir)
		return
	}
	k.follow(k.service.life, h)
}

func (k *Keeper) spawn(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make directory of a holder of streams: %w", err)
	}
	lis, err := listenIn(dir)
	if err != nil {
		return err
	}
	defer lis.Close()
	f, err := lis.File()
	if err != nil {
		return fmt.Errorf("make the socket of a holder of streams: %w", err)
	}
	defer f.Close()
	return k.cfg.Spawn(dir, f)
}

// lose takes note that the process of a holder has ended.
func (k *Keeper) lose(h *holderOf) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h.retired = true
	if k.mu.current == h {
		k.mu.current = nil
	}
	close(h.gone)
}

// forget forgets a holder of which nothing is left.
func (k *Keeper) forget(h *holderOf) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.mu.all, h)
}

// follow stays connected with a holder until its process has ended, and then ends what that has left;
// or until berth stops.
func (k *Keeper) follow(ctx context.Context, h *holderOf) {
	for wait := range retry.Doubling(ctx.Done(), firstWait, time.Second) {
		l, err := dialHolder(h.dir)
		if err == nil {
			err = k.converse(h, l)
		}
		k.mu.Lock()
		stopped := k.mu.stopped
		k.mu.Unlock()
		switch {
		case stopped || ctx.Err() != nil:
			return
		case errors.Is(err, errNoHolder):
			k.bury(h)
			return
		case wait == firstWait:
			k.cfg.Logger.Debug("a process that keeps streams is connected with again", "dir", h.dir, "err", err)
		}
	}
}

// converse hears what a holder says until the connection ends.
func (k *Keeper) converse(h *holderOf, l link) error {
	defer l.Close()
	k.mu.Lock()
	if k.mu.stopped {
		k.mu.Unlock()
		return nil
	}
	h.link = l
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		h.link = link{}
		k.mu.Unlock()
	}()
	buf := make([]byte, maxWord)
	open := map[string]bool{}
	_ = l.SetReadDeadline(time.Now().Add(readyTimeout)) // for its hello
	for {
		w, socket, err := l.receive(buf)
		if err != nil {
			return err
		}
		if socket != nil {
			_ = socket.Close() // no word of a holder's has one
		}
		if w.Say != sayHello {
			k.hear(h, l, w)
			continue
		}
		for _, id := range w.Streams {
			open[id] = true
		}
		if w.More {
			continue
		}
		_ = l.SetReadDeadline(time.Time{})
		if err := k.greet(h, w.Version, open); err != nil {
			h.unlisted++
			if bits.OnesCount(h.unlisted) == 1 { // it may be so for long, and the log is to stay readable
				k.cfg.Logger.Warn("the streams that are held cannot be listed, it is tried again", "dir", h.dir, "attempts", h.unlisted, "err", err)
			}
			return err
		}
		h.unlisted = 0
	}
}

// hear acts on what a holder says after its hello.
func (k *Keeper) hear(h *holderOf, l link, w word) {
	if w.Say == sayBusy {
		for _, id := range w.Streams {
			if s := k.stream(h, id); s != nil {
				s.offer.touch()
			}
		}
		return
	}
	s := k.stream(h, w.Stream)
	if s == nil {
		if w.Call != 0 {
			_ = l.send(word{Say: sayAnswer, Call: w.Call, Err: "berth does not know the stream"}, nil)
		}
		return
	}
	switch w.Say {
	case sayBegin, sayCreate, sayStart:
		go func() {
			a, err := k.answer(s, w)
			if err != nil {
				a.Err = bounded(err.Error())
			}
			a.Say, a.Call = sayAnswer, w.Call
			_ = l.send(a, nil)
		}()
	case sayTook:
		s.takenOnce.Do(func() { close(s.taken) })
	case sayEnded:
		if err := k.endVisit(s, w.Visit, nil); err != nil { // finish tries again
			k.cfg.Logger.Debug("the end of an access is recorded later", "id", s.ID, "err", err)
		}
	case sayOver:
		go k.finish(s, nil)
	}
}

// bounded returns an error's text without what is too long of it for a word: it may have the command in it.
func bounded(text string) string {
	if len(text) <= maxErr {
		return text
	}
	return strings.ToValidUTF8(text[:maxErr], "") + "..."
}

func (k *Keeper) stream(h *holderOf, id string) *kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	return h.streams[id]
}

// greet takes over the streams that a holder has open: it is the first that the holder says. After an error
// berth has to connect again.
func (k *Keeper) greet(h *holderOf, version string, open map[string]bool) error {
	over, err := k.reconcile(h, open)
	if err != nil {
		return err
	}
	for _, s := range over {
		go k.finish(s, nil)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case h.retired || version != k.cfg.Version || !k.cfg.Enabled || k.mu.current != nil && k.mu.current != h:
		k.retireLocked(h)
	default:
		k.mu.current = h
	}
	if !h.greeted {
		h.greeted = true
		close(h.ready)
	}
	return nil
}

// reconcile compares the streams that a holder has open with the directories in which it had some. It
// returns those that are over. The error says that this cannot be found out now: nothing follows from it.
func (k *Keeper) reconcile(h *holderOf, open map[string]bool) (over []*kept, err error) {
	entries, err := os.ReadDir(h.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it has ended, and had nothing
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		id := e.Name()
		if !e.IsDir() {
			continue
		}
		s := k.stream(h, id)
		if s == nil {
			if s, err = k.adopt(h, id); err != nil {
				return nil, err
			}
		} else if k.isUnderway(s) {
			continue // the holder had not heard of it yet when it said what it has
		}
		if s == nil {
			continue
		}
		if !open[id] {
			over = append(over, s)
			continue
		}
		names, err := visitsIn(s.dir)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			_, err := os.Lstat(filepath.Join(s.dir, name+visitEnded))
			switch {
			case errors.Is(err, fs.ErrNotExist):
				continue
			case err == nil:
				err = k.endVisit(s, name, nil)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return over, nil
}

// isUnderway reports whether a stream may be on its way to the holder.
func (k *Keeper) isUnderway(s *kept) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return s.giving && (s.via == nil || s.via == s.holder.link.UnixConn)
}

// adopt takes over a stream that an earlier berth has given to a holder; nil if it has not given it any more.
func (k *Keeper) adopt(h *holderOf, id string) (*kept, error) {
	s := &kept{
		holder: h,
		id:     id,
		dir:    filepath.Join(h.dir, id),
		over:   make(chan struct{}),
		visits: map[string]Visit{},
		ending: map[string]bool{},
		taken:  make(chan struct{}),
	}
	switch err := read(filepath.Join(s.dir, streamFile), &s.held); {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist): // berth was killed before it was noted, and so before it was given
		return nil, os.RemoveAll(s.dir)
	case errors.Is(err, errNotWhole): // its processes and its accesses end all the same
		k.cfg.Logger.Warn("it is not known what a stream was that is held", "dir", s.dir, "err", err)
	default:
		return nil, fmt.Errorf("find out what a stream is that is held: %w", err)
	}
	t, err := k.service.cfg.Target(s.ID)
	if err != nil || !t.Running {
		ended := make(chan struct{})
		close(ended)
		t = pod.Target{ID: s.ID, PodID: s.PodID, Ended: ended}
	}
	s.target = t
	s.offer = k.server.admit(k.budgetOf(s.held), s.PodID, s.drop)
	k.mu.Lock()
	h.streams[id] = s
	k.mu.Unlock()
	go k.watch(s)
	return s, nil
}

// watch says to the holder that the container or the pod of a stream has ended.
func (k *Keeper) watch(s *kept) {
	select {
	case <-s.over:
		return
	case <-k.service.life.Done():
		return
	case <-s.target.Ended:
	}
	for range retry.Doubling(s.over, firstWait, time.Second) {
		if k.service.life.Err() != nil || s.say(word{Say: sayEnd, Stream: s.id}) == nil {
			return
		}
	}
}

// say says something to the holder of a stream.
func (s *kept) say(w word) error {
	k := s.holder.keeper
	k.mu.Lock()
	l, greeted := s.holder.link, s.holder.greeted
	k.mu.Unlock()
	if l.UnixConn == nil || !greeted {
		return fmt.Errorf("the process that holds the stream is not connected: %w", errdefs.ErrUnavailable)
	}
	return l.send(w, nil)
}

// drop hangs up on the client of a stream.
func (s *kept) drop() { _ = s.say(word{Say: sayDrop, Stream: s.id}) }
