// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"context"
	"errors"
	"hash/crc32"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"

	"berth/internal/base/retry"
)

// Kind is the kind of an item.
type Kind string

// The kinds of items.
const (
	Layer Kind = "layer" // an unpacked layer, by its chain ID
	Blob  Kind = "blob"  // a blob, by its digest
)

// Item is a layer or a blob, which is on the disk or not as a whole.
type Item struct {
	Kind        Kind
	Snapshotter string // of a layer
	ID          string
	// Made tells an item from an earlier one of the same ID, which was removed.
	Made string
}

// state is how far a layer or a blob has come on its way to the disk. It is derived from three
// records: the mark, which containerd has, the list of the items that are being synced or could not
// be, which the [Boot] has on the disk, and whether the boot was clean. [Items] has the states in
// memory, and [standing.move] is the only way from one to the next.
//
//	                ┌────── it is written again, from any state but doubted ──────┐
//	                ▼                                                             │
//	made ────────▶ new ──▶ syncing ──▶ synced ──▶ marked ─────────────────────────┤
//	                ▲         │                                                   │
//	                │         └── the kernel could not, or berth was killed ─▶ unsynced
//	                │ it is right, or is now
//	lacks the mark after an unclean boot ──▶ doubted
//
// An item that is unsynced can be read, since the kernel has it in memory, and a second sync of the
// same files would succeed without writing them. So it gets no mark in this boot unless it is
// written again. Blobs are synced when containerd has them.
//
// An item that is removed has no state.
type state string

const (
	stateNew      state = "new"
	stateSyncing  state = "syncing"
	stateSynced   state = "synced"
	stateMarked   state = "marked"
	stateUnsynced state = "unsynced"
	stateDoubted  state = "doubted"
)

// moves are the states that follow each state.
var moves = map[state][]state{
	stateNew:      {stateSyncing, stateDoubted},
	stateSyncing:  {stateSynced, stateUnsynced, stateNew},
	stateSynced:   {stateMarked, stateSyncing, stateUnsynced, stateNew},
	stateMarked:   {stateSyncing, stateNew}, // syncing: somebody has taken the mark from it
	stateUnsynced: {stateNew, stateDoubted},
	stateDoubted:  {stateNew, stateUnsynced},
}

// standing is all that is known of an item.
type standing struct {
	at state
	// wrong: a verification found that it differs from its blob, and did not repair it.
	wrong bool
	// looked: a pull has compared it with its index.
	looked bool
}

// move returns s in the next state. A state that does not follow leaves s as it is: a sync of files
// that were replaced meanwhile does not put the new ones onto the disk.
func (s standing) move(to state) standing {
	if slices.Contains(moves[s.at], to) {
		s.at = to
	}
	return s
}

// Items are the layers and the blobs of a root directory, and how far each has come on its way to
// the disk. Its methods may be called from any goroutine.
type Items struct {
	boot    *Boot
	changed retry.Wake // something may lack the mark
	// files are held while the files of an item are replaced, and while it is noted which are synced.
	// Several items share one, so that an item can be forgotten at any time.
	files [64]*semaphore.Weighted

	mu sync.Mutex
	by map[Item]*standing
}

// NewItems returns the items of a root directory. None is doubted before a [Keeper] has looked.
func NewItems(boot *Boot) *Items {
	s := &Items{boot: boot, changed: retry.NewWake(), by: map[Item]*standing{}}
	for n := range s.files {
		s.files[n] = semaphore.NewWeighted(1)
	}
	return s
}

// Changed says that there may be something new. It never blocks.
func (s *Items) Changed() {
	s.changed.Up()
}

// with calls f with the entry of an item, which it makes from the record of the Boot if there is
// none.
func (s *Items) with(i Item, f func(e *standing)) {
	at := s.derive(i)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.by[i]
	if e == nil {
		e = &standing{at: at}
		s.by[i] = e
	}
	f(e)
}

// derive returns the state of an item that lacks the mark and is not doubted.
func (s *Items) derive(i Item) state {
	if s.boot.Unsynced(i) {
		return stateUnsynced
	}
	return stateNew
}

func (s *Items) move(i Item, to state) {
	s.with(i, func(e *standing) { *e = e.move(to) })
}

func (s *Items) at(i Item) (at state) {
	s.with(i, func(e *standing) { at = e.at })
	return at
}

// Doubted returns how many items are doubted.
func (s *Items) Doubted() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.by {
		if e.at == stateDoubted {
			n++
		}
	}
	return n
}

// Unsynced reports whether an item may be lost from the disk though it is right in memory.
func (s *Items) Unsynced(i Item) bool { return s.boot.Unsynced(i) }

// keepOnly forgets items that are not among those that lack the mark, unless a pull has looked at
// them: they have gone, or have the mark.
func (s *Items) keepOnly(unmarked []Item) error {
	s.mu.Lock()
	for i, e := range s.by {
		if e.at != stateDoubted && !e.looked && !e.wrong && !slices.Contains(unmarked, i) {
			delete(s.by, i)
		}
	}
	s.mu.Unlock()
	return s.boot.forgetOthers(unmarked)
}

// hold keeps the files of an item from being replaced while f runs.
func (s *Items) hold(ctx context.Context, i Item, f func() error) error {
	files := s.files[crc32.ChecksumIEEE([]byte(i.ID))%uint32(len(s.files))]
	if err := files.Acquire(ctx, 1); err != nil {
		return err
	}
	defer files.Release(1)
	return f()
}

// syncing notes that the files that an item has now are about to be synced. It is noted before,
// because a berth that is killed in the middle loses the report of the kernel.
func (s *Items) syncing(ctx context.Context, i Item) error {
	return s.hold(ctx, i, func() error { // not in the middle of a repair
		if err := s.boot.syncing(i); err != nil {
			return err
		}
		s.move(i, stateSyncing)
		return nil
	})
}

// synced notes that the files of an item are on the disk, unless they were replaced meanwhile.
func (s *Items) synced(i Item) error {
	if err := s.boot.synced(i); err != nil {
		s.move(i, stateUnsynced)
		return err
	}
	s.move(i, stateSynced)
	return nil
}

// errReplaced says that an item gets no mark yet, because its files were replaced since they were
// synced. [Items.Rewrite] has woken the keeper.
var errReplaced = errors.New("its files were replaced meanwhile")

// mark calls give, which gives an item the mark. It is errReplaced if its files were replaced since
// they were synced.
func (s *Items) mark(ctx context.Context, i Item, give func(context.Context, Item) error) error {
	return s.hold(ctx, i, func() error {
		if s.at(i) != stateSynced {
			return errReplaced
		}
		err := give(ctx, i)
		if err == nil {
			s.move(i, stateMarked)
		}
		return err
	})
}

// Rewrite calls write, which replaces the files of an item, or finds that it need not, one call at
// a time. It takes the mark from the item before. New files may be synced, and get the mark. An
// item that is doubted stays so until it is checked.
func (s *Items) Rewrite(ctx context.Context, i Item, write func() (replaced bool, err error)) error {
	return s.hold(ctx, i, func() error {
		replaced, err := write()
		if !replaced {
			return err
		}
		defer s.Changed()
		to := stateNew
		if s.Unsynced(i) {
			if noted := s.boot.synced(i); noted != nil {
				to, err = stateUnsynced, errors.Join(err, noted) // no sync under way gives it the mark
			}
		}
		s.with(i, func(e *standing) {
			e.wrong = false
			if e.at != stateDoubted {
				*e = e.move(to)
			}
		})
		return err
	})
}

// FoundWrong notes that a comparison of a layer with its index has found it wrong.
func (s *Items) FoundWrong(i Item) { s.with(i, func(e *standing) { e.wrong = true }) }

// Look says whether a pull looks at a layer that is here: once at each, and each time at one that
// is wrong or unsynced.
func (s *Items) Look(i Item) (look, wrong bool) {
	unsynced := s.Unsynced(i)
	s.with(i, func(e *standing) { look, wrong, e.looked = !e.looked || e.wrong || unsynced, e.wrong, true })
	return look, wrong
}

// Looked notes the result of a look: the layer is right now, or that cannot be told.
func (s *Items) Looked(i Item, right bool) {
	s.with(i, func(e *standing) { e.looked, e.wrong = right, e.wrong && !right })
}
