// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pages = 64 // of the file of a disk
	// from the beginning of one write to the beginning of the next, if it has ended by then
	writePause = 100 * time.Millisecond
)

// disk is a file in the file system of a daemon's directory. It shows the least time that a daemon
// waits if it records something before it reports it.
type disk struct {
	file *os.File
	page []byte
}

// openDisk makes the file in dir, with all its pages on the disk, so that a write to one of them
// changes nothing else.
func openDisk(dir string) (*disk, error) {
	f, err := os.OpenFile(filepath.Join(dir, "disk"), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_DSYNC, 0o600)
	if err != nil {
		return nil, err
	}
	d := &disk{file: f, page: make([]byte, os.Getpagesize())}
	if _, err := f.Write(make([]byte, pages*len(d.page))); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return d, nil
}

// writing writes a page onto the disk every writePause, on a thread that goes before all others,
// until stop is called. stop returns how long each write took.
func (d *disk) writing() (stop func() ([]time.Duration, error)) {
	enough, ended := make(chan struct{}), make(chan error, 1)
	var took []time.Duration
	go func() {
		runtime.LockOSThread() // for good, as in victim.watch
		err := os.NewSyscallError("setpriority", unix.Setpriority(unix.PRIO_PROCESS, 0, mostNice))
		tick := time.NewTicker(writePause)
		defer tick.Stop()
		for page := int64(0); err == nil; page = (page + 1) % pages {
			select {
			case <-tick.C:
			case <-enough:
				ended <- nil
				return
			}
			began := time.Now()
			_, err = d.file.WriteAt(d.page, page*int64(len(d.page)))
			took = append(took, time.Since(began))
		}
		ended <- err
	}()
	return func() ([]time.Duration, error) {
		close(enough)
		if err := <-ended; err != nil {
			return nil, fmt.Errorf("write a page onto the disk: %w", err)
		}
		return took, nil
	}
}
