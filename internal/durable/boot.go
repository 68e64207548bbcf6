// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// bootName is the file that says which boot the images were made in.
const bootName = "boot"

// bootID has a text that differs between boots.
const bootID = "/proc/sys/kernel/random/boot_id"

// Boot says whether what a berth has made may be lost from the disk, since the machine was booted
// after it without a clean stop. There is one for a root directory.
type Boot struct {
	path string
	id   string

	mu      sync.Mutex
	doubted bool
}

// bootRecord is what the file has.
type bootRecord struct {
	Boot string `json:"boot"`
	// Clean says that everything was on the disk when berth stopped.
	Clean bool `json:"clean,omitempty"`
	// Doubted says that not everything was checked yet after an unclean boot.
	Doubted bool `json:"doubted,omitempty"`
}

// OpenBoot reads the file of a root directory, and notes in it that berth runs in this boot. It is
// called before anything is made there. A directory without the file is one that berth uses for the
// first time: what is there was not made under these rules, and is trusted.
//
// An error is for the log: what cannot be told is doubted, and berth can go on.
func OpenBoot(root string) (*Boot, error) {
	id, err := os.ReadFile(bootID)
	if err != nil {
		err = fmt.Errorf("tell which boot this is: %w", err)
		id = []byte("unknown since " + time.Now().String())
	}
	b, opening := openBoot(root, strings.TrimSpace(string(id)))
	return b, errors.Join(err, opening)
}

func openBoot(root, id string) (*Boot, error) {
	b := &Boot{path: filepath.Join(root, bootName), id: id}
	text, err := os.ReadFile(b.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	case err != nil:
		b.doubted = true
		err = fmt.Errorf("tell whether the last boot was clean: %w", err)
	default:
		var last bootRecord
		if json.Unmarshal(text, &last) != nil { // what was cut off says nothing
			last = bootRecord{}
		}
		b.doubted = last.Doubted || !last.Clean && last.Boot != id
	}
	return b, errors.Join(err, b.write(bootRecord{Boot: id, Doubted: b.doubted}))
}

// Doubted reports whether what lacks the mark is doubted.
func (b *Boot) Doubted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.doubted
}

// Checked notes that nothing is doubted any more.
func (b *Boot) Checked() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.write(bootRecord{Boot: b.id}); err != nil {
		return err
	}
	b.doubted = false
	return nil
}

// Stopped notes that everything is on the disk. It is called last of all, and changes nothing while
// something is doubted.
func (b *Boot) Stopped() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.write(bootRecord{
		Boot:    b.id,
		Clean:   !b.doubted,
		Doubted: b.doubted,
	})
}

// write replaces the file, and returns once that is on the disk.
func (b *Boot) write(r bootRecord) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := replace(b.path, append(text, '\n')); err != nil {
		return fmt.Errorf("note in which boot images are made: %w", err)
	}
	return nil
}

// replace writes a file that is either as before or as given, whatever happens.
func replace(path string, text []byte) error {
	next := path + ".new"
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	return syncPath(filepath.Dir(path))
}

// syncPath puts a file or a directory onto the disk.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
