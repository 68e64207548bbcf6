// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"berth/test/world"
)

// Story is a world, the berth in it, and a client that knows its pods and containers by names: p1,
// and p1/c1 or c1.
type Story struct {
	// Restored makes containers from a checkpoint.
	Restored bool

	// Vain: questions are asked in vain at any time (see [world.InVain]), as vain chooses.
	Vain *rand.Rand

	World *world.World
	Watch *Watch
	ctx   context.Context
	dir   string
	seed  uint64

	mu       sync.Mutex
	healedAt time.Time // nothing is broken from then on; zero: it may be
	berth    *Berth
	ids      map[string]string // by name: of the last one of that name
	attempts map[string]uint32 // by name: of the next one; absent: 0
	wg       sync.WaitGroup    // subscribers and calls in the background
	quit     context.CancelFunc

	onDeath func() // is called once, before the berth boots that follows one that died

	transcript *transcript
}

// NewStory begins in an empty world. dir is for berth's records. The seed decides the order of
// events at the same instant.
func NewStory(ctx context.Context, dir string, seed uint64) *Story {
	w, t := world.New(seed), newTranscript()
	return &Story{
		World:      w,
		Watch:      NewWatch(w, t.event),
		ctx:        ctx,
		dir:        dir,
		seed:       seed,
		ids:        map[string]string{},
		attempts:   map[string]uint32{},
		quit:       func() {},
		transcript: t,
	}
}

// Berth is the berth that runs, or nil.
func (s *Story) Berth() *Berth {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.berth
}

// ID is the ID of the last unit of a name; "" when none was ever made.
func (s *Story) ID(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[name]
}

func (s *Story) named(name, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids[name] = id
	if _, short, ok := strings.Cut(name, "/"); ok {
		s.ids[short] = id
	}
}

// Boot starts a berth, if none runs, and subscribes to its events.
func (s *Story) Boot() error {
	if b := s.Berth(); b != nil {
		if !b.Dead() {
			return nil
		}
		if err := s.Kill(); err != nil {
			return err
		}
		if s.onDeath != nil {
			s.onDeath()
			s.onDeath = nil
		}
	}
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Minute)
	defer cancel()
	b, err := Boot(ctx, s.World, s.dir)
	if err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	s.mu.Lock()
	s.berth = b
	s.mu.Unlock()
	s.Subscribe()
	return nil
}

// Subscribe ends the subscription, if there is one, and makes a new one.
func (s *Story) Subscribe() {
	s.Unsubscribe()
	b := s.Berth()
	if b == nil {
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	s.mu.Lock()
	s.quit = cancel
	s.mu.Unlock()
	sub := b.Core.Subscribe()
	s.wg.Go(func() { s.Watch.Follow(ctx, sub) })
}

// Unsubscribe ends the subscription.
func (s *Story) Unsubscribe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quit()
}

// Kill ends the berth as SIGKILL does.
func (s *Story) Kill() error { return s.end((*Berth).Kill) }

// Stop ends the berth as SIGTERM does.
func (s *Story) Stop() error { return s.end((*Berth).Stop) }

func (s *Story) end(how func(*Berth) error) error {
	b := s.Berth()
	if b == nil {
		return nil
	}
	err := how(b)
	s.mu.Lock()
	s.berth = nil
	s.mu.Unlock()
	return err
}

var errNoBerth = errors.New("there is no berth")

// Background makes a call while the story goes on.
func (s *Story) Background(call func() error) { s.wg.Go(func() { s.turn(); _ = call() }) }

// turn waits for the client's turn.
func (s *Story) turn() { s.World.Turn() }
