// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/base/budget"
	"berth/internal/base/ops"
	"berth/internal/base/retry"
	"berth/internal/heart/pod"
)

const (
	// stepTimeout bounds one attempt of a step that is repeated. The shim takes ten seconds to
	// delete a process whose output is held open.
	stepTimeout = 15 * time.Second
	// makeTimeout bounds the creation and the start of a process. A caller may stop waiting earlier.
	makeTimeout = 2 * time.Minute
	// Failures are retried after firstWait, which doubles up to lastWait.
	firstWait = 100 * time.Millisecond
	lastWait  = 5 * time.Minute
)

// process is one exec process and its objects outside berth.
type process struct {
	s     *Service
	key   Key
	place place // until it is gone
	dir   string
	pipes *pipes // nil for a process of an earlier berth

	// These are of one that is to be made without the shim, if that is possible; member is it.
	joined  Joined
	ends    [2]*os.File // its standard output and error, until it has them
	streams streams
	paced   bool // its start waits for other starts
	specify func(ctx context.Context) (*specs.Process, error)
	member  Member

	containerEnded <-chan struct{}

	unwanted chan struct{} // closed by abandon
	once     sync.Once

	started chan struct{} // closed when the process runs, or never will
	exited  chan struct{} // closed when it has ended; never before started
	// These are valid when the channel of the same line is closed.
	startErr error  // started
	code     uint32 // exited
	exitErr  error  // exited: the reason if there is no code
}

// command is a client's request.
type command struct {
	args     []string
	terminal bool
	streams  streams
	of       *budget.Budget // in which the process has a place
	join     bool           // it need not outlive berth
}

// start makes an exec process and returns when it runs. The caller reads from its pipes, waits for
// exited, and calls abandon in any case.
func (s *Service) start(ctx context.Context, t pod.Target, c command) (*process, error) {
	specified := func(ctx context.Context) (*specs.Process, error) {
		spec, err := s.cfg.Processes.Spec(ctx, t.ID)
		if err != nil {
			return nil, fmt.Errorf("read specification of container %s: %w", t.ID, err)
		}
		what, err := specify(spec, c)
		if err != nil {
			return nil, fmt.Errorf("container %s: %w", t.ID, err)
		}
		return what, nil
	}
	var joined Joined
	if c.join && s.cfg.Joiner != nil {
		joined = s.cfg.Joiner.Prepare(ctx, t, c.args)
	}
	var what *specs.Process
	var err error
	if joined == nil {
		if what, err = specified(ctx); err != nil {
			return nil, err
		}
	}
	place, err := s.enter(c.of, t.PodID)
	if err != nil {
		return nil, err
	}
	key := Key{Container: t.ID, Exec: rand.Text()}
	p := &process{
		s:              s,
		key:            key,
		place:          place,
		dir:            filepath.Join(s.cfg.Dir, key.String()),
		joined:         joined,
		streams:        c.streams,
		paced:          c.join,
		specify:        specified,
		containerEnded: t.Ended,
		unwanted:       make(chan struct{}),
		started:        make(chan struct{}),
		exited:         make(chan struct{}),
	}
	if joined == nil {
		p.pipes, err = s.pipes(p.dir, c.streams)
	} else {
		p.pipes, p.ends[0], p.ends[1], err = openPipes(p.dir)
	}
	if err != nil {
		place.leave()
		return nil, err
	}
	r := p.pipes.request()
	r.Process = what
	go p.run(r)
	_, op := ops.Begin(ctx, ops.Work{Kind: ops.Shim, What: "the shim (Exec)"})
	defer op.End()
	select {
	case <-p.started:
		err = p.startErr
	case <-ctx.Done():
		err = ctx.Err()
	case <-t.Ended:
		err = fmt.Errorf("container %s has ended: %w", t.ID, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		p.abandon()
		return nil, err
	}
	return p, nil
}

// specify makes the specification of a process from that of the container's own process.
func specify(spec *specs.Spec, c command) (*specs.Process, error) {
	if spec.Process == nil {
		return nil, fmt.Errorf("its specification has no process: %w", errdefs.ErrFailedPrecondition)
	}
	p := *spec.Process
	p.Args = c.args
	p.CommandLine = ""
	p.Terminal = c.terminal
	p.ConsoleSize = nil
	hasTerm := func(e string) bool { return strings.HasPrefix(e, "TERM=") }
	if c.terminal && !slices.ContainsFunc(p.Env, hasTerm) {
		p.Env = append(slices.Clone(p.Env), "TERM=xterm")
	}
	return &p, nil
}

// abandon is called when the result of the process is not needed any more. If it has not ended, it
// is killed.
func (p *process) abandon() { p.once.Do(func() { close(p.unwanted) }) }

// run goes through the life of the process.
func (p *process) run(r Request) {
	p.startErr = p.make(r)
	p.pipes.opened()
	close(p.started)
	if p.startErr != nil {
		p.exitErr = p.startErr
	} else {
		p.code, p.exitErr = p.await()
	}
	close(p.exited)
	select {
	case <-p.unwanted:
	case <-p.s.stopping:
	}
	p.pipes.close()
	p.finish()
}

// make creates the process and starts it.
func (p *process) make(r Request) error {
	ctx, cancel := context.WithTimeout(p.s.life, makeTimeout)
	defer cancel()
	if p.joined != nil {
		if p.join(ctx) == nil {
			return nil
		}
		if p.isUnwanted() {
			return p.nobodyWaits()
		}
		var err error
		if r, err = p.resort(ctx); err != nil {
			return err
		}
	}
	if p.paced {
		done, err := p.s.starts.enter(ctx, p)
		if err != nil {
			return err
		}
		defer done()
	}
	if err := p.s.cfg.Processes.CreateExec(ctx, p.key, r); err != nil {
		return err
	}
	if p.isUnwanted() {
		return p.nobodyWaits()
	}
	return p.s.cfg.Processes.StartExec(ctx, p.key)
}

func (p *process) nobodyWaits() error {
	return fmt.Errorf("exec in container %s: its caller is gone: %w", p.key.Container, errdefs.ErrUnavailable)
}

func (p *process) isUnwanted() bool {
	select {
	case <-p.unwanted:
		return true
	case <-p.s.stopping:
		return true
	case <-p.containerEnded:
		return true
	default:
		return false
	}
}

// await waits for the end of the process, which is killed once it is abandoned.
func (p *process) await() (uint32, error) {
	ctx, cancel := context.WithCancel(p.s.life)
	defer cancel()
	stop := make(chan struct{})
	killing := make(chan struct{})
	go func() {
		defer close(killing)
		select {
		case <-stop:
			return
		case <-p.unwanted:
		case <-p.s.stopping:
		case <-p.containerEnded:
		}
		p.kill(stop)
		select {
		case <-stop:
		case <-time.After(stepTimeout): // the shim does not answer, or lost the process
			cancel()
		case <-p.s.life.Done():
		}
	}()
	code, err := p.waitEnd(ctx)
	close(stop)
	<-killing
	return code, err
}

func (p *process) waitEnd(ctx context.Context) (uint32, error) {
	if p.member != nil {
		return p.member.Wait(ctx)
	}
	return p.s.cfg.Processes.WaitExec(ctx, p.key)
}

func (p *process) killOnce(ctx context.Context) error {
	if p.member != nil {
		return p.member.Kill()
	}
	return p.s.cfg.Processes.KillExec(ctx, p.key)
}

// kill kills the process, and repeats that until it succeeds or stop is closed.
func (p *process) kill(stop <-chan struct{}) {
	for range retry.Doubling(stop, firstWait, time.Second) {
		ctx, cancel := context.WithTimeout(p.s.life, stepTimeout)
		err := p.killOnce(ctx)
		cancel()
		if err == nil || errdefs.IsNotFound(err) || p.s.life.Err() != nil {
			return
		}
	}
}

// leftover is a process of an earlier berth.
func (s *Service) leftover(key Key) *process {
	return &process{s: s, key: key, dir: filepath.Join(s.cfg.Dir, key.String())}
}

// finish ends the process if it still runs, deletes it and removes its directory. It retries failed
// steps until the service has stopped: the directory then tells the next berth that there is
// something to do.
func (p *process) finish() {
	defer p.place.leave()
	if p.member == nil {
		defer openForShim(p.dir)()
	}
	for wait := range retry.Doubling(p.s.life.Done(), firstWait, lastWait) {
		err := p.delete()
		if err == nil {
			err = os.RemoveAll(p.dir)
		}
		if err == nil {
			p.awaitLeft()
			return
		}
		if p.s.life.Err() != nil {
			return
		}
		if wait == firstWait {
			p.s.cfg.Logger.Warn("exec process not ended, retrying", "container", p.key.Container, "exec", p.key.Exec, "err", err)
		}
	}
}

// awaitLeft keeps the place of a process that has left others behind of which berth has to wait for
// the end, so that a pod has no more of those than of processes that run.
func (p *process) awaitLeft() {
	if p.member == nil {
		return
	}
	select {
	case <-p.member.Left():
	case <-p.s.life.Done():
	}
}

// delete is one attempt to end and to delete the process.
func (p *process) delete() error {
	if p.member != nil {
		return p.endMember()
	}
	ctx, cancel := context.WithTimeout(p.s.life, stepTimeout)
	defer cancel()
	if noted, err := p.endNoted(ctx); noted {
		return err
	}
	err := p.s.cfg.Processes.DeleteExec(ctx, p.key)
	if err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	// The process may still run, as one that an earlier berth started does. The wording of that
	// error differs between shims.
	if kerr := p.s.cfg.Processes.KillExec(ctx, p.key); kerr != nil && !errdefs.IsNotFound(kerr) {
		return errors.Join(err, kerr)
	}
	if _, werr := p.s.cfg.Processes.WaitExec(ctx, p.key); werr != nil && !errdefs.IsNotFound(werr) {
		return errors.Join(err, werr)
	}
	if err = p.s.cfg.Processes.DeleteExec(ctx, p.key); errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// leftovers are the processes whose directories an earlier berth has left in dir. Other files are
// left alone.
func leftovers(dir string) ([]Key, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read directory of exec processes: %w", err)
	}
	var keys []Key
	for _, e := range entries {
		if container, exec, ok := strings.Cut(e.Name(), "."); ok && e.IsDir() {
			keys = append(keys, Key{Container: container, Exec: exec})
		}
	}
	return keys, nil
}
