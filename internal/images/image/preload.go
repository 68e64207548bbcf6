// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/retry"
	"berth/internal/base/wholefile"
)

// archiveSuffixes end the names of archives in image.preload_dir.
var archiveSuffixes = []string{".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"}

// The waits between attempts to import an archive while containerd is away.
const (
	firstPreload   = time.Second
	slowestPreload = 30 * time.Second
)

// PreloadConfig has the settings for importing the archives of a directory.
type PreloadConfig struct {
	// Dir is the directory; "" for none.
	Dir string
	// Memory is the file that remembers which archives were imported. If it is lost, they are
	// imported once more.
	Memory string
	// Ready waits until images can be imported.
	Ready func(ctx context.Context) error
}

// Preload imports the archives of a directory and pins their images: when it begins to run, and
// whenever Look is called.
//
// It imports one archive after the other, in the order of their names, but one that a pull waits
// for comes next. An archive that has the size and the modification time of before, and whose
// images are here, is not imported again. The images of an archive that is no longer in the
// directory are no longer pinned. An archive that cannot be imported is named in the log and in
// Problems, and holds up no other; it is tried again by the next look.
type Preload struct {
	images *Service
	cfg    PreloadConfig
	looks  chan string // directories

	mu struct {
		sync.Mutex
		memory   memory
		problems map[string]string // by path
	}
}

// memory has the archives that were imported, by path.
type memory map[string]remembered

// remembered is an archive that was imported.
type remembered struct {
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	IDs      []string  `json:"ids"` // of its images
}

// NewPreload makes the importer of archives for a service.
func NewPreload(s *Service, cfg PreloadConfig) *Preload {
	p := &Preload{images: s, cfg: cfg, looks: make(chan string, 1)}
	p.mu.problems = map[string]string{}
	return p
}

// Look asks Run to read the directory again, or another one. It does not block.
func (p *Preload) Look(dir string) {
	for {
		select {
		case p.looks <- dir:
			return
		case <-p.looks: // the newer one counts
		}
	}
}

// Problems has a sentence for each archive that could not be imported, with the reason.
func (p *Preload) Problems() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Values(p.mu.problems))
}

// Run imports archives until ctx ends.
func (p *Preload) Run(ctx context.Context) error {
	p.recall()
	dir := p.cfg.Dir
	for {
		p.look(ctx, dir)
		select {
		case <-ctx.Done():
			return nil
		case dir = <-p.looks:
		}
	}
}

// recall reads the memory and pins its images.
func (p *Preload) recall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := wholefile.ReadSealed(p.cfg.Memory, &p.mu.memory)
	if err != nil || p.mu.memory == nil {
		p.mu.memory = memory{}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.images.cfg.Logger.Warn("which archives were imported cannot be read, and they are imported again", "file", p.cfg.Memory, "err", err)
		}
	}
	p.pinLocked()
}

// pinLocked pins the images of the archives that are remembered.
func (p *Preload) pinLocked() {
	ids := map[string]bool{}
	for _, a := range p.mu.memory {
		for _, id := range a.IDs {
			ids[id] = true
		}
	}
	p.images.pinArchives(ids)
}

// found is an archive in the directory.
type found struct {
	path     string
	size     int64
	modified time.Time
	bad      bool // it cannot be asked about, or not be trusted
	arrival  *arrival
	over     func()
}

// look imports the new archives of a directory.
func (p *Preload) look(ctx context.Context, dir string) {
	p.mu.Lock()
	p.mu.problems = map[string]string{}
	p.mu.Unlock()
	list, ok := p.list(dir)
	if ok {
		p.forget(list)
	}
	if len(list) == 0 || p.cfg.Ready(ctx) != nil {
		return
	}
	var due []*found
	for _, f := range list {
		if !f.bad && !p.isHere(f) {
			names, _ := Contain(p.images.cfg.Logger, p.images.cfg.Panicked, f.path, func() ([]string, error) { return peek(f.path), nil })
			f.arrival, f.over = p.images.arrivals.announce(f.path, names)
			due = append(due, f)
		}
	}
	for len(due) > 0 {
		next := max(0, slices.IndexFunc(due, func(f *found) bool { return p.images.arrivals.wanted(f.arrival) }))
		f := due[next]
		due = slices.Delete(due, next, next+1)
		p.load(ctx, f)
		f.over()
	}
}

// list returns the archives of a directory, in the order of their names. ok is false if the
// directory could not be read, so that its content is unknown.
func (p *Preload) list(dir string) (list []*found, ok bool) {
	if dir == "" {
		return nil, true
	}
	entries, err := os.ReadDir(dir)
	if err == nil {
		err = checkWriters(dir)
	}
	if err != nil {
		p.problem(dir, fmt.Errorf("read image.preload_dir: %w", err))
		return nil, false
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasPrefix(e.Name(), ".") { // a file that is being copied there, most often
			continue
		}
		if !slices.ContainsFunc(archiveSuffixes, func(s string) bool { return strings.HasSuffix(e.Name(), s) }) {
			p.images.cfg.Logger.Info("file in image.preload_dir is left out, its name does not end like that of an archive", "file", path, "archives", archiveSuffixes)
			continue
		}
		st, err := os.Stat(path)
		if err == nil && !st.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a regular file", path)
		}
		if err == nil {
			err = checkWriters(path)
		}
		if err != nil {
			p.problem(path, err)
			list = append(list, &found{path: path, bad: true})
			continue
		}
		list = append(list, &found{path: path, size: st.Size(), modified: st.ModTime()})
	}
	return list, true
}

// checkWriters returns an error if others than root, or this user, may write to a file, because the
// file decides which programs containers run.
func checkWriters(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if ok && sys.Uid != 0 && int(sys.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to the user %d; chown it to root if it is to be trusted", path, sys.Uid)
	}
	if mode := st.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("%s has the mode %o: others than root may write to it; run chmod go-w on it if it is to be trusted", path, mode)
	}
	return nil
}

// forget forgets the archives that are not in the list.
func (p *Preload) forget(list []*found) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := len(p.mu.memory)
	maps.DeleteFunc(p.mu.memory, func(path string, _ remembered) bool {
		return !slices.ContainsFunc(list, func(f *found) bool { return f.path == path })
	})
	if len(p.mu.memory) != before {
		p.pinLocked()
		p.writeLocked()
	}
}

// isHere reports whether an archive was imported as it is, and all of its images are here.
func (p *Preload) isHere(f *found) bool {
	p.mu.Lock()
	was, ok := p.mu.memory[f.path]
	p.mu.Unlock()
	return ok && was.Size == f.size && was.Modified.Equal(f.modified) && p.images.have(was.IDs)
}

// load imports an archive, and remembers it.
func (p *Preload) load(ctx context.Context, f *found) {
	began := time.Now()
	all, leftOut, err := p.attempt(ctx, f)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		p.problem(f.path, err)
		return
	}
	a := remembered{Size: f.size, Modified: f.modified}
	var names []string
	for _, st := range all {
		a.IDs = append(a.IDs, st.ID)
		names = append(names, st.Name.String())
	}
	p.images.cfg.Logger.Info("archive is imported", "archive", f.path, "images", names, "left_out", leftOut, "took", time.Since(began))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.memory[f.path] = a
	p.pinLocked()
	p.writeLocked()
}

// attempt imports an archive. It tries again while containerd is away, which is not because of the
// archive.
func (p *Preload) attempt(ctx context.Context, f *found) (all []Stored, leftOut []string, err error) {
	for range retry.Doubling(ctx.Done(), firstPreload, slowestPreload) {
		if err = p.cfg.Ready(ctx); err == nil {
			all, leftOut, err = p.images.load(ctx, KindPreload, f.path, "")
		}
		if !errdefs.IsUnavailable(err) {
			break
		}
	}
	return all, leftOut, err
}

func (p *Preload) problem(path string, err error) {
	p.images.cfg.Logger.Error("images cannot be preloaded", "path", path, "err", err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.problems[path] = fmt.Sprintf("not preloaded: %v", err)
}

// writeLocked writes the memory. Without it the archives are imported once more.
func (p *Preload) writeLocked() {
	if err := wholefile.WriteSealed(p.cfg.Memory, p.mu.memory); err != nil {
		p.images.cfg.Logger.Warn("which archives were imported cannot be written, and they are imported again", "file", p.cfg.Memory, "err", err)
	}
}
