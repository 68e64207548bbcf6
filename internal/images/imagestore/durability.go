// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"berth/internal/images/durable"
	"berth/internal/images/unpack"
)

// Durability keeps a power cut from making images wrong.
type Durability struct {
	*core
	layers *imageLayers
	items  *durable.Items  // nil: no image is ever doubted
	keeper *durable.Keeper // nil as well
	root   *os.File        // nil: it is not open
}

// durability is the store of the keeper.
type durability struct {
	*imageLayers
	*repairer
}

func openDurability(c *core, ls *imageLayers, rp *repairer) *Durability {
	d := &Durability{core: c, layers: ls, items: rp.items}
	if d.items != nil {
		d.root = openRoot(c.cfg.Root, c.cfg.Logger)
		d.keeper = durable.NewKeeper(durable.Config{
			Store:   durability{ls, rp},
			Items:   rp.items,
			Log:     c.cfg.Logger,
			Checked: c.cfg.Checked,
		})
	}
	return d
}

// KeepDurable puts images onto the disk and marks them, and checks those that are doubted after an
// unclean boot, until ctx ends. It is called once, when containerd is there.
func (d *Durability) KeepDurable(ctx context.Context) error {
	if d.keeper == nil {
		return nil
	}
	return d.keeper.Run(ctx)
}

// Trust waits until nothing is doubted of a layer and of those below it: see
// [durable.Keeper.Trust].
func (d *Durability) Trust(ctx context.Context, snapshotter, chainID string) error {
	if d.keeper == nil || snapshotter != overlay {
		return nil
	}
	return d.keeper.Trust(ctx, snapshotter, chainID)
}

// Doubts returns how many layers and blobs are doubted since an unclean boot.
func (d *Durability) Doubts() int {
	if d.items == nil {
		return 0
	}
	return d.items.Doubted()
}

// MayHaveChanged notes that there may be images that another client has made. It never blocks.
func (d *Durability) MayHaveChanged() {
	if d.items != nil {
		d.items.Changed()
	}
}

// Settle notes that all images are on the disk, so that the next boot need not doubt any, and puts
// them there if that takes a moment only. It is called when berth stops and nothing is made any
// more, and only for the containerd in this process. If it cannot be told that all are there, that
// is an error, and not noted.
func (d *Durability) Settle() error {
	if d.keeper == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	left, err := d.layers.Unmarked(ctx)
	if err != nil {
		return fmt.Errorf("find out which images are not on the disk: %w", err)
	}
	layer := func(l durable.Item) bool { return l.Kind == durable.Layer }
	// With an unsynced layer the stop is not a clean one in any case.
	if slices.ContainsFunc(left, layer) && !slices.ContainsFunc(left, d.items.Unsynced) {
		if d.root == nil {
			return fmt.Errorf("put images onto the disk: %w", errNoRoot)
		}
		if err := unpack.SyncAll(ctx, d.root); err != nil {
			return fmt.Errorf("put images onto the disk; the next boot checks those that were made last: %w", err)
		}
	}
	if err := d.cfg.Boot.Stopped(); err != nil {
		return fmt.Errorf("note that images are on the disk: %w", err)
	}
	return nil
}

// errNoRoot means that the root directory could not be opened, or there is none.
var errNoRoot = errors.New("the directory of containerd is not open")

// openRoot opens the directory of the containerd in this process, before anything is made in it:
// the kernel reports each write that fails from then on to Settle, even if it has reported it
// elsewhere.
func openRoot(dir string, log *slog.Logger) *os.File {
	if dir == "" {
		return nil
	}
	err := os.MkdirAll(dir, 0o700) // containerd makes it as well, later
	var f *os.File
	if err == nil {
		f, err = os.Open(dir)
	}
	if err != nil {
		log.Warn("images that are made shortly before berth stops are checked after the next boot", "err", err)
		return nil
	}
	return f
}

// making notes that an image is being made, until done is called: nothing is synced meanwhile.
func (d *Durability) making() (done func()) {
	if d.keeper == nil {
		return func() {}
	}
	return d.keeper.Busy()
}
