// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"berth/internal/base/wholefile"
)

// States of a migration.
const (
	applying = "applying"
	applied  = "applied"
	undoing  = "undoing"
	undone   = "undone"
)

// journal is the record of a migration. It is written before each step, and is there whole.
type journal struct {
	State   string    `json:"state"`
	Began   time.Time `json:"began"`
	From    string    `json:"from"`
	Old     string    `json:"oldEndpoint"`
	New     string    `json:"newEndpoint"`
	Healthz int       `json:"healthz"`
	Entries []entry   `json:"steps"`

	dir string // of the journal, where the originals are as well
}

// entry is a step that was begun.
type entry struct {
	Do   string `json:"do"`
	What string `json:"what"`
	Done bool   `json:"done"` // it succeeded, and was checked

	// For a file that is written: its state before, and the new content.
	Was    string      `json:"was,omitempty"`    // the sum; "" if there was none
	Saved  string      `json:"saved,omitempty"`  // the original, beside the journal
	Mode   fs.FileMode `json:"mode,omitempty"`   // of the original
	UID    int         `json:"uid,omitempty"`    // the same
	GID    int         `json:"gid,omitempty"`    // the same
	Link   string      `json:"link,omitempty"`   // the file itself, if What is a symbolic link to it
	Writes string      `json:"writes,omitempty"` // the sum
	Dirs   []string    `json:"dirs,omitempty"`   // made for it, outer ones first

	Restarts string `json:"restarts,omitempty"` // a unit that reads the file when it starts

	// Of a unit: how it was.
	Active  bool     `json:"active,omitempty"`
	Enabled bool     `json:"enabled,omitempty"`
	Pods    []string `json:"pods,omitempty"` // IDs of those that berth had before it was enabled
}

func journalDir(root, state string) string { return filepath.Join(root, state, "migrate") }

// same reports whether two readings are of the same journal in the same state. nil is one of none.
func (j *journal) same(other *journal) bool {
	if j == nil || other == nil {
		return j == other
	}
	return j.State == other.State && j.Began.Equal(other.Began) && len(j.Entries) == len(other.Entries)
}

// loadJournal reads the journal of a node; nil if there is none.
func loadJournal(dir string) (*journal, error) {
	name := filepath.Join(dir, "journal.json")
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the journal of a migration: %w; run this as root", err)
	}
	j := &journal{dir: dir}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(j); err != nil {
		return nil, fmt.Errorf("read the journal %s: %w; nothing was done: the originals of files are beside it, and have the names of the steps", name, err)
	}
	return j, nil
}

func (j *journal) save() error {
	b, err := json.MarshalIndent(j, "", "  ")
	if err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	if err := replace(filepath.Join(j.dir, "journal.json"), append(b, '\n'), 0o600, -1, -1); err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	return nil
}

// replace writes a file that is there whole or not at all, and is on the disk. An owner below 0
// stands for the user who runs this.
func replace(name string, body []byte, mode fs.FileMode, uid, gid int) error {
	if err := wholefile.Write(name, body, mode, uid, gid); err != nil {
		return err
	}
	return wholefile.SyncDir(filepath.Dir(name))
}

// sumOf is the sum of a file; "" if there is none, nor a directory for it.
func sumOf(name string) (string, error) {
	sum, err := wholefile.SumOf(name)
	if errors.Is(err, syscall.ENOTDIR) {
		return "", nil
	}
	return sum, err
}

// prepare records the state of a file before it is written, and keeps the original.
func (j *journal) prepare(root string, number int, s Step) (e entry, err error) {
	e = entry{
		Do:       s.Do,
		What:     s.What,
		Writes:   wholefile.Sum(s.body),
		Mode:     s.mode,
		UID:      -1,
		GID:      -1,
		Restarts: s.restarts,
	}
	name := filepath.Join(root, s.What)
	if st, err := os.Lstat(name); err == nil && st.Mode()&fs.ModeSymlink != 0 {
		target, err := filepath.EvalSymlinks(name)
		if err != nil {
			return e, fmt.Errorf("write %s: it is a symbolic link that leads nowhere: %w; take it away", s.What, err)
		}
		if name = target; root == "/" {
			e.Link = target
		} else {
			e.Link = strings.TrimPrefix(target, strings.TrimSuffix(root, "/"))
		}
	}
	b, err := os.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		for dir := filepath.Dir(name); ; dir = filepath.Dir(dir) {
			if _, err := os.Stat(dir); err == nil || dir == root || dir == "/" {
				break
			}
			e.Dirs = append([]string{strings.TrimPrefix(dir, strings.TrimSuffix(root, "/"))}, e.Dirs...)
		}
		return e, nil
	case err != nil:
		return e, fmt.Errorf("write %s: %w; nothing of this step was done", s.What, err)
	}
	st, err := os.Stat(name)
	if err != nil {
		return e, fmt.Errorf("write %s: %w", s.What, err)
	}
	e.Was, e.Mode = wholefile.Sum(b), st.Mode().Perm()
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		e.UID, e.GID = int(sys.Uid), int(sys.Gid)
	}
	e.Saved = fmt.Sprintf("%02d-%s", number, strings.ReplaceAll(strings.Trim(s.What, "/"), "/", "-"))
	if err := replace(filepath.Join(j.dir, e.Saved), b, 0o600, -1, -1); err != nil {
		return e, fmt.Errorf("keep the original of %s: %w", s.What, err)
	}
	return e, nil
}

// at is where the file of an entry is.
func (e entry) at(root string) string {
	if e.Link != "" {
		return filepath.Join(root, e.Link)
	}
	return filepath.Join(root, e.What)
}

func (e entry) write(root string, body []byte) error {
	for _, dir := range e.Dirs {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("write %s: %w", e.What, err)
		}
	}
	if err := replace(e.at(root), body, e.Mode, e.UID, e.GID); err != nil {
		return fmt.Errorf("write %s: %w", e.What, err)
	}
	if have, err := sumOf(e.at(root)); err != nil || have != e.Writes {
		return fmt.Errorf("write %s: it has not what was written (%w)", e.What, errors.Join(err, errors.New("its sum is another one")))
	}
	return nil
}

// restore puts the original of a file back. If the content is neither the original nor the written
// one, it is kept beside the journal, and its name there is returned.
func (j *journal) restore(root string, e entry) (kept string, err error) {
	name := e.at(root)
	if err := wholefile.RemoveUnfinished(name); err != nil {
		return "", err
	}
	have, err := sumOf(name)
	if err != nil {
		return "", fmt.Errorf("restore %s: %w", e.What, err)
	}
	if have != "" && have != e.Was && have != e.Writes {
		b, err := os.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("restore %s: %w", e.What, err)
		}
		kept = filepath.Join(j.dir, "changed-"+strings.ReplaceAll(strings.Trim(e.What, "/"), "/", "-"))
		if err := replace(kept, b, 0o600, -1, -1); err != nil {
			return "", fmt.Errorf("keep %s, which was changed: %w", e.What, err)
		}
	}
	if e.Saved == "" {
		if have != "" {
			if err := os.Remove(name); err != nil {
				return kept, fmt.Errorf("remove %s: %w", e.What, err)
			}
		}
		for i := len(e.Dirs) - 1; i >= 0; i-- { // those in which somebody else has put something stay
			if err := os.Remove(filepath.Join(root, e.Dirs[i])); err != nil {
				break
			}
		}
		return kept, nil
	}
	if have == e.Was {
		return kept, nil
	}
	b, err := os.ReadFile(filepath.Join(j.dir, e.Saved))
	if err != nil || wholefile.Sum(b) != e.Was {
		return kept, fmt.Errorf("restore %s: the original is not beside the journal as it was: %w", e.What, errors.Join(err, fmt.Errorf("look at %s", filepath.Join(j.dir, e.Saved))))
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return kept, fmt.Errorf("restore %s: %w", e.What, err)
	}
	if err := replace(name, b, e.Mode, e.UID, e.GID); err != nil {
		return kept, fmt.Errorf("restore %s: %w", e.What, err)
	}
	return kept, nil
}
