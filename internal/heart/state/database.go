// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// database is the file berth.db, opened by bbolt. It is opened again where bbolt cannot go on:
//
//   - bbolt maps the file anew when it grows, and takes the old mapping away first. If the new one
//     fails, for want of memory for example, bbolt refuses every transaction from then on.
//   - A file on a disk that can only be read is opened for reading. Records that can only be read
//     are served, and the first transaction that writes after the disk can be written opens the
//     file for writing.
//
// The file is locked as long as it is open, and not while it is opened again. If another berth has
// written to it meanwhile, it stays closed, because the records in this one's memory are outdated.
type database struct {
	path     string
	openFile opener
	// mapFlags are for mmap(2). Tests make it fail by changing them.
	mapFlags int
	// last is the ID of the last transaction that was tried, or that the file had when it was opened.
	last atomic.Int64

	// mu is held for reading over each transaction, and for writing while the file is opened again.
	mu       sync.RWMutex
	db       *bbolt.DB // nil: it could not be opened again, or it is closed
	readOnly error     // why it can only be read; nil: it can be written
	closed   bool
}

// opener is os.OpenFile, the door through which the files of the records are opened.
type opener func(path string, flags int, mode os.FileMode) (*os.File, error)

// openDatabase opens the file, for reading alone if its disk can only be read.
func openDatabase(path string, openFile opener) (*database, error) {
	d := &database{path: path, openFile: openFile}
	if err := guarded(d.open); err != nil {
		return nil, err
	}
	return d, nil
}

// open opens the file. d.mu is held for writing, or d is not shared yet.
func (d *database) open() (err error) {
	d.readOnly = nil
	d.db, err = bbolt.Open(d.path, 0o600, d.options(d.openFile))
	if errors.Is(err, unix.EROFS) {
		d.readOnly = err
		err = d.openForReading()
	}
	if err != nil {
		d.db = nil
		return err
	}
	return d.db.View(func(tx *bbolt.Tx) error {
		d.last.Store(max(d.last.Load(), int64(tx.ID())))
		return nil
	})
}

func (d *database) options(openFile opener) *bbolt.Options {
	return &bbolt.Options{
		Timeout:      lockTimeout,
		FreelistType: bbolt.FreelistMapType,
		// Open rebuilds the free list, which costs less than writing it at each commit.
		NoFreelistSync: true,
		MmapFlags:      d.mapFlags,
		OpenFile:       openFile,
	}
}

// openForReading opens the file for reading. bbolt shares it with other readers then; a berth does
// not, and locks it as one that writes does.
func (d *database) openForReading() (err error) {
	var file *os.File
	options := d.options(func(path string, flags int, mode os.FileMode) (f *os.File, err error) {
		file, err = d.openFile(path, flags, mode)
		return file, err
	})
	options.ReadOnly = true
	if d.db, err = bbolt.Open(d.path, 0o600, options); err != nil {
		return err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = berrors.ErrTimeout // the error that bbolt returns
		}
		return errors.Join(err, d.db.Close())
	}
	return nil
}

// View runs a transaction that reads.
func (d *database) View(do func(*bbolt.Tx) error) error {
	return d.try(false, func(db *bbolt.DB) error { return db.View(do) })
}

// Update runs a transaction that writes. do may be called twice, the second time on another
// transaction, of which nothing is there from the first.
func (d *database) Update(do func(*bbolt.Tx) error) error {
	return d.try(true, func(db *bbolt.DB) error {
		return db.Update(func(tx *bbolt.Tx) error {
			d.last.Store(int64(tx.ID()))
			return do(tx)
		})
	})
}

func (d *database) try(write bool, do func(*bbolt.DB) error) error {
	usable, err := d.once(write, do)
	if usable {
		return err
	}
	if oerr := d.reopen(write); oerr != nil {
		return errors.Join(err, oerr)
	}
	if usable, err = d.once(write, do); !usable && err == nil {
		err = errLost
	}
	return err
}

// errLost is returned where a database that was opened again cannot be used once more.
var errLost = errors.New("the database could be opened again, and not be used")

// once runs a transaction, and reports whether the database could be used, and can be used again.
func (d *database) once(write bool, do func(*bbolt.DB) error) (usable bool, err error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	switch {
	case d.closed:
		return true, berrors.ErrDatabaseNotOpen
	case d.db == nil || write && d.readOnly != nil:
		return false, nil
	}
	err = do(d.db)
	return err == nil || isMapped(d.db), err
}

// isMapped reports whether bbolt has its file mapped.
func isMapped(db *bbolt.DB) bool {
	err := db.View(func(*bbolt.Tx) error { return nil })
	return !errors.Is(err, berrors.ErrInvalidMapping)
}

// reopen opens the file again if it cannot be used as it is. It returns why it still cannot.
func (d *database) reopen(write bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return berrors.ErrDatabaseNotOpen
	case d.db != nil && isMapped(d.db) && (!write || d.readOnly == nil):
		return nil // another process has opened it
	}
	// The file is not made anew, and one that can be read is not closed in vain.
	f, err := d.openFile(d.path, os.O_RDWR, 0)
	if err == nil {
		err = f.Close()
	}
	if err != nil && (!errors.Is(err, unix.EROFS) || d.db != nil && isMapped(d.db)) {
		return fmt.Errorf("open it for writing: %w", err)
	}
	if d.db != nil {
		_ = d.db.Close()
	}
	known := d.last.Load()
	if err := guarded(d.open); err != nil {
		d.db = nil
		return fmt.Errorf("open it again: %w", err)
	}
	if found := d.last.Load(); found > known {
		_ = d.db.Close()
		d.db, d.closed = nil, true
		return fmt.Errorf("open it again: it has transaction %d, and the last of this berth's is %d: %w", found, known, ErrInUse)
	}
	if write && d.readOnly != nil {
		return d.readOnly
	}
	return nil
}

// isReadOnly reports whether the file is open for reading alone.
func (d *database) isReadOnly() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.readOnly != nil
}

// Close closes the file, after the transactions in flight.
func (d *database) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.db == nil {
		return nil
	}
	return d.db.Close()
}

// lockTimeout is how long Open waits for another process to close the database.
const lockTimeout = 500 * time.Millisecond
