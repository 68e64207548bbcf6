// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth/internal/images/image"
)

// diskTimeout bounds the measurement of logs and records. A file system that hangs costs one
// goroutine, however often somebody asks.
const diskTimeout = 5 * time.Second

// Disks measures the space that is not used by images: logs, and the files of berth itself.
type Disks struct {
	Dirs    []string // of berth
	Without []string // directories that are measured otherwise: those of containerd and of profiles
	busy    sync.Mutex
	asking  sync.Mutex // held while a file system is asked for its space
}

// shares returns what the logs at the given paths, and those that they were rotated to, take, and
// what berth's own files do.
func (d *Disks) shares(ctx context.Context, logs []string) []image.Share {
	ctx, cancel := context.WithTimeout(ctx, diskTimeout)
	own := []image.Share{
		{What: "logs", Note: "output of containers, with what was rotated"},
		{What: "state", Note: "records, checkpoints and files of pods"},
	}
	if !d.busy.TryLock() {
		cancel()
		return unmeasured(own, "a measurement that was begun before has not ended")
	}
	done := make(chan []image.Share, 1)
	go func() {
		defer d.busy.Unlock()
		measured := []image.Share{own[0], own[1]}
		for _, path := range logs {
			addLog(ctx, &measured[0], path)
		}
		for _, dir := range d.Dirs {
			d.addDir(ctx, &measured[1], dir)
		}
		done <- measured
	}()
	defer cancel()
	select {
	case measured := <-done:
		if ctx.Err() != nil {
			return unmeasured(measured, "there was no time to measure all")
		}
		return measured
	case <-ctx.Done():
		return unmeasured(own, "the file system does not answer")
	}
}

func unmeasured(shares []image.Share, why string) []image.Share {
	for i := range shares {
		shares[i].Unknown++
		shares[i].Note = why
	}
	return shares
}

// addLog adds a log and its rotated files: those whose names begin like its name.
func addLog(ctx context.Context, s *image.Share, path string) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || ctx.Err() != nil {
		if err == nil || !os.IsNotExist(err) {
			s.Unknown++
		}
		return
	}
	for _, e := range entries {
		if name, base := e.Name(), filepath.Base(path); name == base || strings.HasPrefix(name, base+".") {
			add(s, e)
		}
	}
}

// addDir adds the files below a directory, on its own file system.
func (d *Disks) addDir(ctx context.Context, s *image.Share, dir string) {
	top, err := os.Lstat(dir)
	if err != nil {
		s.Unknown++
		return
	}
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !os.IsNotExist(err):
			s.Unknown++
			return nil
		case err != nil: // removed meanwhile
			return nil
		case !e.IsDir():
			add(s, e)
			return nil
		}
		if st, err := e.Info(); slices.Contains(d.Without, path) || err == nil && device(st) != device(top) {
			return filepath.SkipDir
		}
		return nil
	})
}

// add adds a file with its share of the disk, which is less than its size if it has holes.
func add(s *image.Share, e fs.DirEntry) {
	st, err := e.Info()
	if err != nil || !st.Mode().IsRegular() {
		return
	}
	s.Count++
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		s.Bytes += sys.Blocks * 512
	}
}

func device(st fs.FileInfo) uint64 {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return sys.Dev
	}
	return 0
}

// Space is space for a caller without a context.
func (d *Disks) Space(path string) (total, free uint64) { return d.space(context.Background(), path) }

// space returns the size of the file system that a path is on, and what is free of it; 0 where that
// is not known, as long as the file system does not answer.
func (d *Disks) space(ctx context.Context, path string) (total, free uint64) {
	ctx, cancel := context.WithTimeout(ctx, diskTimeout)
	defer cancel()
	if !d.asking.TryLock() {
		return 0, 0
	}
	answer := make(chan syscall.Statfs_t, 1)
	go func() {
		defer d.asking.Unlock()
		var st syscall.Statfs_t
		if syscall.Statfs(path, &st) != nil || st.Bsize <= 0 {
			st = syscall.Statfs_t{}
		}
		answer <- st
	}()
	select {
	case st := <-answer:
		return st.Blocks * uint64(st.Bsize), st.Bavail * uint64(st.Bsize)
	case <-ctx.Done():
		return 0, 0
	}
}
