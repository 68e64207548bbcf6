// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/ops"
	"berth/internal/base/retry"
)

// Outcome is the result of a check.
type Outcome string

// The outcomes.
const (
	Whole    Outcome = "whole"    // it was right
	Repaired Outcome = "repaired" // it was wrong, and is right now
	Removed  Outcome = "removed"  // it was wrong and could not be repaired, or has gone by itself
	Unsynced Outcome = "unsynced" // it could not be put onto the disk
)

// ErrUnsynced means that an item could not be put onto the disk: if it can be read, it may be in
// memory alone.
var ErrUnsynced = errors.New("it could not be put onto the disk, and may be lost from there")

// Store has the items. Errors are ErrNotFound for an item that is gone.
type Store interface {
	// Unmarked returns all items that lack the mark, a layer after those below it, and blobs first.
	Unmarked(ctx context.Context) ([]Item, error)
	// Below returns a layer and the layers below it, the lowest first.
	Below(ctx context.Context, snapshotter, chainID string) ([]Item, error)
	// Index writes the index of a layer that has none. It syncs nothing, and is called again when
	// it has failed.
	Index(ctx context.Context, i Item) error
	// Sync puts a layer onto the disk, at low priority. It is not called again if it has failed:
	// the kernel reports a write that has failed once, and a second sync succeeds although nothing
	// was written.
	Sync(ctx context.Context, i Item) error
	// Mark gives an item the mark, and returns once the mark is on the disk.
	Mark(ctx context.Context, i Item) error
	// Check compares an item with its index or its digest, and repairs or removes it if it is
	// wrong. The layers below it are right. If idle is set, it runs at low priority. It returns an
	// error if it cannot tell, or cannot repair the item now.
	Check(ctx context.Context, i Item, idle bool) (Outcome, error)
}

// Config has the settings of a keeper. Log may not be nil.
type Config struct {
	Store Store
	Items *Items
	Log   *slog.Logger
	// Checked is called with the outcome of each check of a doubted item, and with Unsynced. It may
	// be nil.
	Checked func(i Item, o Outcome)
}

const (
	// quiet is how long nothing must have been made before anything is synced: containers start
	// from a new image in that time.
	quiet = 3 * time.Second
	// latest is how long a sync is put off, at most.
	latest = time.Minute
	// The wait between two attempts.
	firstRetry   = time.Second
	slowestRetry = time.Minute
)

// withheld is set by the linker for one test alone: everything gets the mark without being synced.
var withheld string

// Keeper gives items their marks, and has those checked that are doubted. Its methods may be called
// from any goroutine.
type Keeper struct {
	cfg    Config
	items  *Items
	boot   *Boot
	loaded chan struct{} // closed once the doubted items are known

	mu     sync.Mutex
	doubts map[Item]*doubt // the checks of those that are doubted
	order  []Item          // of doubts, those below first
	busy   int             // how many pulls, imports and unpackings are in flight
	last   time.Time       // when one of them ended, or berth began
	life   context.Context // of the checks
}

// doubt is an item that is doubted, from when that is known until it was checked.
//
//	waiting -> checking -> settled
//	   ^          |
//	   +----------+ it cannot be told, or somebody waits for it now
type doubt struct {
	item     Item
	urgent   int                // how many wait for it
	idle     bool               // the attempt that runs lets everybody else go first
	cancel   context.CancelFunc // of the attempt that runs; nil for none
	attempts int                // that have failed
	failed   error              // why the last attempt failed
	attempt  chan struct{}      // closed when the next attempt has ended
	settled  chan struct{}      // closed once it was checked
	outcome  Outcome            // once settled is closed
}

// NewKeeper makes a keeper. Nothing is done before Run.
func NewKeeper(cfg Config) *Keeper {
	if cfg.Checked == nil {
		cfg.Checked = func(Item, Outcome) {}
	}
	return &Keeper{
		cfg:    cfg,
		items:  cfg.Items,
		boot:   cfg.Items.boot,
		loaded: make(chan struct{}),
		doubts: map[Item]*doubt{},
	}
}

// Busy says that something is being made, until done is called. Nothing is synced meanwhile.
func (k *Keeper) Busy() (done func()) {
	k.note()
	k.mu.Lock()
	k.busy++
	k.mu.Unlock()
	return func() {
		k.mu.Lock()
		k.busy--
		k.last = time.Now()
		k.mu.Unlock()
		k.items.Changed()
	}
}

// note tries once more to note in which boot images are made, if that could not be done: otherwise
// they would not be doubted after a power cut.
func (k *Keeper) note() {
	if err := k.boot.note(); err != nil {
		k.cfg.Log.Warn("it cannot be noted in which boot images are made: after a power cut they may not be checked", "err", err)
	}
}

// Run checks the doubted items, and gives marks, until ctx ends. It is called once, when containerd
// is there.
func (k *Keeper) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if k.boot.Doubted() {
		if !k.load(ctx) {
			return nil
		}
		wg.Go(func() { k.checkAll(ctx) })
	}
	close(k.loaded)
	k.mu.Lock()
	k.last = time.Now() // clients that waited for berth come first
	k.mu.Unlock()
	k.items.Changed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.items.changed:
		}
		if !k.untilQuiet(ctx) {
			return nil
		}
		k.note()
		if err := k.mark(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			k.cfg.Log.Warn("not everything of the images is known to be on the disk; trying again", "err", err)
			if !retry.Sleep(ctx.Done(), slowestRetry) {
				return nil
			}
			k.items.Changed()
		}
	}
}

// untilQuiet waits until nothing is being made. It returns false when ctx ends.
func (k *Keeper) untilQuiet(ctx context.Context) bool {
	for begun := time.Now(); time.Since(begun) < latest; {
		k.mu.Lock()
		wait := quiet - time.Since(k.last)
		if k.busy > 0 {
			wait = quiet
		}
		k.mu.Unlock()
		if wait <= 0 {
			return true
		}
		if !retry.Sleep(ctx.Done(), wait) {
			return false
		}
	}
	return true
}

// mark puts the items without the mark onto the disk, and gives them the mark. It leaves out those
// that are doubted or unsynced.
func (k *Keeper) mark(ctx context.Context) error {
	items, err := k.cfg.Store.Unmarked(ctx)
	if err != nil {
		return fmt.Errorf("list what is not known to be on the disk: %w", err)
	}
	errs := []error{k.items.keepOnly(items)}
	marked := 0
	for _, i := range slices.Backward(items) { // a look at an upper layer finds those below
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if at := k.items.at(i); at == stateDoubted || at == stateUnsynced {
			continue
		}
		err := k.sync(ctx, i)
		if err == nil {
			err = k.items.mark(ctx, i, k.cfg.Store.Mark)
		}
		switch {
		case err == nil:
			marked++
		case errdefs.IsNotFound(err), errors.Is(err, ErrUnsynced), errors.Is(err, errReplaced):
		default:
			errs = append(errs, fmt.Errorf("%s %s: %w", i.Kind, i.ID, err))
		}
	}
	if marked > 0 {
		k.cfg.Log.Info("images are on the disk", "layers and blobs", marked)
	}
	return errors.Join(errs...)
}

// sync puts an item onto the disk. ErrUnsynced says that it could not be done and must not be tried
// again; that is logged. Blobs are there already.
func (k *Keeper) sync(ctx context.Context, i Item) error {
	if i.Kind == Blob || withheld != "" {
		k.items.move(i, stateSyncing)
		k.items.move(i, stateSynced)
		return nil
	}
	if err := k.cfg.Store.Index(ctx, i); err != nil {
		return err
	}
	if err := k.items.syncing(ctx, i); err != nil {
		return err
	}
	failed := k.cfg.Store.Sync(ctx, i)
	if failed == nil || errdefs.IsNotFound(failed) {
		return errors.Join(failed, k.items.synced(i))
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	k.items.move(i, stateUnsynced)
	k.cfg.Log.Error("a layer of an image could not be put onto the disk: the kernel may have lost it without saying so again. After a power cut it is checked; "+
		"berth images verify --repair, a pull or an import of the image writes it again", "layer", i.ID, "err", failed)
	k.cfg.Checked(i, Unsynced)
	return fmt.Errorf("%w: %w", ErrUnsynced, failed)
}

func (k *Keeper) of(i Item) *doubt {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.doubts[i]
}

// load finds the doubted items. It returns false if ctx ends before they are known.
func (k *Keeper) load(ctx context.Context) bool {
	for wait := range retry.Doubling(ctx.Done(), firstRetry, slowestRetry) {
		items, err := k.cfg.Store.Unmarked(ctx)
		if err != nil {
			k.cfg.Log.Warn("it cannot be told which images the last boot has left unfinished; trying again", "err", err, "wait", wait)
			continue
		}
		if len(items) > 0 {
			k.cfg.Log.Warn("the last boot was not clean: what was not on the disk for certain is checked before it is used", "layers and blobs", len(items))
		}
		k.doubt(ctx, items)
		return true
	}
	return false
}

// doubt notes that items are doubted.
func (k *Keeper) doubt(ctx context.Context, items []Item) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.life, k.order = ctx, items
	for _, i := range items {
		k.items.move(i, stateDoubted)
		k.doubts[i] = &doubt{item: i, attempt: make(chan struct{}), settled: make(chan struct{})}
	}
}

// checkAll checks the doubted items one after the other, the lowest layers first, and retries
// failures later.
func (k *Keeper) checkAll(ctx context.Context) {
	for wait := range retry.Doubling(ctx.Done(), firstRetry, slowestRetry) {
		k.mu.Lock()
		order := slices.Clone(k.order)
		k.mu.Unlock()
		var failed error
		for _, i := range order {
			d := k.of(i)
			if d == nil {
				continue
			}
			if err := k.check(ctx, d, true); err != nil && !errors.Is(err, errOvertaken) {
				failed = err
			}
			if ctx.Err() != nil {
				return
			}
		}
		k.mu.Lock()
		k.order = slices.DeleteFunc(k.order, func(i Item) bool { return k.doubts[i] == nil })
		left := len(k.order)
		k.mu.Unlock()
		if left == 0 {
			if err := k.boot.Checked(); err != nil {
				k.cfg.Log.Warn("images are checked, and that cannot be noted; trying again", "err", err, "wait", wait)
				continue
			}
			k.cfg.Log.Info("everything that the last boot has left unfinished is checked")
			k.items.Changed()
			return
		}
		if failed != nil {
			k.cfg.Log.Warn("a doubted layer or blob cannot be checked or repaired; trying again", "left", left, "err", failed, "wait", wait)
		}
	}
}

// errOvertaken ends an attempt that lets others go first, because somebody waits for the item now.
var errOvertaken = errors.New("somebody waits for it now")

// check makes one attempt to check an item, or joins the one that runs.
func (k *Keeper) check(ctx context.Context, d *doubt, idle bool) error {
	k.mu.Lock()
	if k.doubts[d.item] != d { // it was settled
		k.mu.Unlock()
		return nil
	}
	if d.cancel != nil {
		ended := d.attempt
		if d.idle && !idle {
			d.cancel()
		}
		k.mu.Unlock()
		select {
		case <-ended:
			return errOvertaken
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	trying, cancel := context.WithCancel(ctx)
	defer cancel()
	d.cancel, d.idle = cancel, idle && d.urgent == 0
	idle = d.idle
	k.mu.Unlock()

	outcome, err := k.cfg.Store.Check(trying, d.item, idle)
	if errdefs.IsNotFound(err) {
		outcome, err = Removed, nil
	}

	k.mu.Lock()
	if err != nil && trying.Err() != nil && ctx.Err() == nil {
		err = errOvertaken
	}
	d.cancel = nil
	ended := d.attempt
	d.attempt = make(chan struct{})
	if err == nil {
		d.outcome = outcome
		delete(k.doubts, d.item)
		k.items.move(d.item, k.items.derive(d.item)) // it is right now, or has gone
		close(d.settled)
	} else if !errors.Is(err, errOvertaken) {
		d.attempts++
		d.failed = err
	}
	close(ended)
	k.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s %s: %w", d.item.Kind, d.item.ID, err)
	}
	k.cfg.Checked(d.item, outcome)
	return nil
}

// Trust waits until nothing is doubted of a layer and of the layers below it. The error is
// ErrNotFound for a layer that was wrong and had to be removed, and ErrUnavailable with the reason
// for one that cannot be checked or repaired, or when ctx ends. Where nothing is doubted it returns
// at once.
func (k *Keeper) Trust(ctx context.Context, snapshotter, chainID string) error {
	if !k.boot.Doubted() {
		return nil
	}
	select {
	case <-k.loaded:
	case <-ctx.Done():
		return fmt.Errorf("layer %s: it is not known yet which layers the last boot has left unfinished: %w", chainID, errdefs.ErrUnavailable)
	}
	if k.items.Doubted() == 0 {
		return nil
	}
	items, err := k.cfg.Store.Below(ctx, snapshotter, chainID)
	if err != nil {
		return fmt.Errorf("layer %s: %w", chainID, err)
	}
	for _, i := range items {
		if d := k.of(i); d != nil {
			if err := k.await(ctx, d); err != nil {
				return err
			}
		}
	}
	return nil
}

// await has an item checked now, and waits for that. The check goes on when ctx ends.
func (k *Keeper) await(ctx context.Context, d *doubt) error {
	k.mu.Lock()
	d.urgent++
	life, before := k.life, d.attempts
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		d.urgent--
		k.mu.Unlock()
	}()
	_, op := ops.Begin(ctx, ops.Work{
		Kind: ops.Wait,
		What: fmt.Sprintf("the check of the %s %s, which is doubted since an unclean boot", d.item.Kind, d.item.ID),
	})
	defer op.End()
	tried := make(chan error, 1)
	go func() {
		for { // until an attempt was not overtaken
			if err := k.check(life, d, false); !errors.Is(err, errOvertaken) {
				tried <- err
				return
			}
			k.mu.Lock()
			err := d.failed
			over := d.attempts > before
			k.mu.Unlock()
			if over {
				tried <- err
				return
			}
		}
	}()
	select {
	case <-d.settled:
	case err := <-tried:
		if err != nil {
			return fmt.Errorf("%s %s is doubted since an unclean boot: %w: %w", d.item.Kind, d.item.ID, err, errdefs.ErrUnavailable)
		}
		<-d.settled
	case <-ctx.Done():
		return fmt.Errorf("%s %s is being checked since an unclean boot: %w", d.item.Kind, d.item.ID, errdefs.ErrUnavailable)
	}
	if d.outcome == Removed {
		return fmt.Errorf("%s %s was lost in an unclean boot and is removed; pull the image again: %w", d.item.Kind, d.item.ID, errdefs.ErrNotFound)
	}
	return nil
}
