// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/internal/base/wholefile"
)

// bootName is the file that says which boot the images were made in.
const bootName = "boot"

// bootID has a text that differs between boots.
const bootID = "/proc/sys/kernel/random/boot_id"

// Boot knows whether the images of an earlier berth may be lost from the disk, because the machine
// was booted, or the disk mounted again, without a clean stop before. There is one for a root
// directory.
type Boot struct {
	path string

	writing sync.Mutex // held while the file is replaced, and never by a question

	mu     sync.Mutex
	record bootRecord
	noted  bool // the file has record
}

// bootRecord is the content of the file.
type bootRecord struct {
	Boot string `json:"boot"`
	// Life tells the lives of the file systems within the boot: see [Life]. It is empty where the
	// kernel does not tell them, and of a berth that did not ask.
	Life string `json:"life,omitempty"`
	// Clean says that everything was on the disk when berth stopped.
	Clean bool `json:"clean,omitempty"`
	// Doubted says that not everything was checked yet after an unclean boot.
	Doubted bool `json:"doubted,omitempty"`
	// Unsynced are the items that are being put onto the disk, or could not be, in this boot.
	Unsynced []Item `json:"unsynced,omitempty"`
	// Unknown says that it is not known which items those are: none gets the mark in this boot.
	Unknown bool `json:"unknown,omitempty"`
}

// OpenBoot reads the file of a root directory, and notes in it that berth runs in this boot. images
// are directories of images that may be on other file systems. It is called before anything is made
// there. A directory without the file is one that berth uses for the first time: its images were
// not made under these rules, and are trusted.
//
// An error is for the log, and berth can go on: if it cannot be told whether the boot was clean,
// images are doubted, and a note that fails is tried again before an image is made.
func OpenBoot(root string, images ...string) (*Boot, error) {
	id, err := os.ReadFile(bootID)
	if err != nil {
		err = fmt.Errorf("tell which boot this is: %w", err)
		id = []byte("unknown since " + time.Now().String())
	}
	life, unknown := Life(append([]string{root}, images...)...)
	if unknown != nil {
		life = "unknown since " + time.Now().String()
	}
	b, opening := openBoot(root, strings.TrimSpace(string(id)), life)
	return b, errors.Join(err, unknown, opening)
}

func openBoot(root, id, life string) (*Boot, error) {
	b := &Boot{path: filepath.Join(root, bootName), record: bootRecord{Boot: id, Life: life}}
	var last bootRecord
	err := wholefile.ReadSealed(b.path, &last)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	case err != nil: // a file that is damaged proves nothing
		b.record.Doubted, b.record.Unknown = true, true
		err = fmt.Errorf("tell whether the last boot was clean: %w", err)
	default:
		same := last.Boot == id && (last.Life == "" || last.Life == life)
		b.record.Doubted = last.Doubted || !last.Clean && !same
		if same {
			b.record.Unsynced, b.record.Unknown = last.Unsynced, last.Unknown
		}
	}
	return b, errors.Join(err, b.note())
}

// note writes the record to the file, unless the file has it.
func (b *Boot) note() error {
	b.mu.Lock()
	noted := b.noted
	b.mu.Unlock()
	if noted {
		return nil
	}
	return b.change(func(*bootRecord) {})
}

// Doubted reports whether items without the mark are doubted. It never waits for the disk.
func (b *Boot) Doubted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.record.Doubted
}

// Unsynced reports whether an item must not get the mark in this boot: a sync of it has failed or
// was cut off. It never waits for the disk.
func (b *Boot) Unsynced(i Item) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.record.Unknown || slices.Contains(b.record.Unsynced, i)
}

// syncing notes that an item is about to be synced. After it, the item is unsynced until synced is
// called, also for a berth that is started after this one was killed.
func (b *Boot) syncing(i Item) error {
	return b.change(func(r *bootRecord) { r.Unsynced = append(r.Unsynced, i) })
}

// synced notes that items need not be kept from the mark: they are on the disk, have gone, or are
// made of other files now.
func (b *Boot) synced(items ...Item) error {
	return b.change(func(r *bootRecord) {
		r.Unsynced = slices.DeleteFunc(r.Unsynced, func(i Item) bool { return slices.Contains(items, i) })
	})
}

// forgetOthers forgets the items that are not among those that lack the mark: they have gone.
func (b *Boot) forgetOthers(unmarked []Item) error {
	b.mu.Lock()
	gone := slices.DeleteFunc(slices.Clone(b.record.Unsynced), func(i Item) bool { return slices.Contains(unmarked, i) })
	b.mu.Unlock()
	if len(gone) == 0 {
		return nil
	}
	return b.synced(gone...)
}

// Checked notes that nothing is doubted any more.
func (b *Boot) Checked() error {
	return b.change(func(r *bootRecord) { r.Doubted = false })
}

// Stopped notes that everything is on the disk. It is called last of all. While something is
// doubted or unsynced it notes nothing, and returns an error for an unsynced item.
func (b *Boot) Stopped() error {
	unsynced := false
	err := b.change(func(r *bootRecord) {
		unsynced = r.Unknown || len(r.Unsynced) > 0
		r.Clean = !r.Doubted && !unsynced
	})
	if unsynced {
		err = errors.Join(err, ErrUnsynced)
	}
	return err
}

// change replaces the file, and returns once that is on the disk. If it cannot, nothing has
// changed.
func (b *Boot) change(f func(r *bootRecord)) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	b.mu.Lock()
	next := b.record
	b.mu.Unlock()
	next.Unsynced = slices.Clone(next.Unsynced)
	f(&next)
	err := wholefile.WriteSealed(b.path, next)
	if err == nil {
		err = wholefile.SyncDir(filepath.Dir(b.path))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.noted = false // it may be there or not
		return fmt.Errorf("note in which boot images are made: %w", err)
	}
	b.record, b.noted = next, true
	return nil
}

// syncPath puts a file or a directory onto the disk.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
