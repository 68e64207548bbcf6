// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"berth/internal/pod"
)

// sandboxShimTimeout bounds the question to the shim of one handler.
const sandboxShimTimeout = 5 * time.Second

// sandboxShims knows the handlers whose shims can serve a pod without a process. Each is asked in
// the background, and for a pod that could do without, until there is an answer, which is kept.
type sandboxShims struct {
	handlers map[string]pod.Handler
	ask      func(ctx context.Context, h pod.Handler) (bool, error)
	log      *slog.Logger

	mu       sync.Mutex
	answered map[string]bool // by handler
}

func newSandboxShims(handlers map[string]pod.Handler, ask func(ctx context.Context, h pod.Handler) (bool, error), log *slog.Logger) *sandboxShims {
	return &sandboxShims{
		handlers: handlers,
		ask:      ask,
		log:      log,
		answered: map[string]bool{},
	}
}

// probe asks the shims of all handlers, each until it has answered, once ready returns.
func (s *sandboxShims) probe(ctx context.Context, ready func(context.Context) error) {
	untilAnswered(ctx, slices.Sorted(maps.Keys(s.handlers)), ready, func(ctx context.Context, name string) error {
		_, err := s.check(ctx, name)
		return err
	}, func(name string, err error) {
		s.log.Warn("the sandboxes of a runtime handler have a pause process until it is known whether they can do without; asking again", "handler", name, "err", err)
	})
}

// can reports whether the shim of a handler can serve a pod without a process. It cannot as long as
// there is no answer.
func (s *sandboxShims) can(ctx context.Context, handler string) bool {
	can, err := s.check(ctx, handler)
	return err == nil && can
}

func (s *sandboxShims) check(ctx context.Context, handler string) (bool, error) {
	s.mu.Lock()
	can, ok := s.answered[handler]
	s.mu.Unlock()
	if ok {
		return can, nil
	}
	h := s.handlers[handler]
	if h.Sandboxer == "" && h.HostProcess && h.Options == pod.OptionsRunc {
		ctx, cancel := context.WithTimeout(ctx, sandboxShimTimeout)
		defer cancel()
		var err error
		if can, err = s.ask(ctx, h); err != nil {
			return false, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.answered[handler]; !ok {
		s.log.Debug("whether the sandboxes of a runtime handler can do without a process is known", "handler", handler, "can", can)
	}
	s.answered[handler] = can
	return can, nil
}
