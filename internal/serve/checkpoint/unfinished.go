// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"berth/internal/base/retry"
)

const (
	// undoAgain is the pause between two attempts to undo unfinished work.
	undoAgain = time.Second
	// warnAgain is the least time between two warnings that it cannot be undone.
	warnAgain = time.Minute
)

type unfinishedConfig struct {
	dir    string                                     // made by the first note
	undo   func(ctx context.Context, id string) error // removes the note, too
	undone string                                     // the log message after an undo
	stays  string                                     // and while it cannot be
	logger *slog.Logger
}

// unfinished is work that is noted in a directory as long as it is not finished, each under the ID
// that it is about. Work that is noted and not in progress was cut off, by a kill or because it
// could not be undone at once: it is undone as soon as that is possible.
type unfinished struct {
	cfg unfinishedConfig

	wake retry.Wake // holds one "something may have to be undone"

	mu   sync.Mutex
	busy map[string]bool // work in progress
}

func newUnfinished(cfg unfinishedConfig) *unfinished {
	u := &unfinished{cfg: cfg, wake: retry.NewWake(), busy: map[string]bool{}}
	u.wake <- struct{}{}
	return u
}

// note returns the path under which work is noted.
func (u *unfinished) note(id string) string { return filepath.Join(u.cfg.dir, id) }

// enter returns false if work about id is being done already. Otherwise nothing undoes it before
// leave.
func (u *unfinished) enter(id string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.busy[id] {
		return false
	}
	u.busy[id] = true
	return true
}

// leave ends the work on an ID: it is finished, or could not be undone; run undoes it then.
func (u *unfinished) leave(id string) {
	u.mu.Lock()
	delete(u.busy, id)
	u.mu.Unlock()
	if _, err := os.Lstat(u.note(id)); err != nil {
		return
	}
	u.wake.Up()
}

// run undoes work that was cut off. It tries until it succeeds, and ends with ctx.
func (u *unfinished) run(ctx context.Context) error {
	var warned time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-u.wake:
		}
		if err := u.sweep(ctx); err != nil && ctx.Err() == nil && time.Since(warned) >= warnAgain {
			warned = time.Now()
			u.cfg.logger.Warn(u.cfg.stays, "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(undoAgain):
		}
	}
}

// sweep undoes all that is noted and not being done, side by side: one that cannot be undone delays
// no other.
func (u *unfinished) sweep(ctx context.Context) error {
	list, err := os.ReadDir(u.cfg.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list interrupted work: %w", err)
	}
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, e := range list {
		if !u.enter(e.Name()) {
			continue
		}
		wg.Go(func() {
			defer u.leave(e.Name())
			if err := u.cfg.undo(ctx, e.Name()); err != nil {
				errs[i] = fmt.Errorf("%s: %w", e.Name(), err)
				return
			}
			u.cfg.logger.Info(u.cfg.undone, "id", e.Name())
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
