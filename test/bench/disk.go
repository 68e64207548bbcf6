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

// pages is how many pages the file of a disk has.
const pages = 64

// disk is a file in the file system of a daemon's directory. It shows what a daemon waits for at least
// when it writes something down before it tells it.
type disk struct {
	file *os.File
	page []byte
	next int64
}

// openDisk makes the file in dir, with all its pages on the disk, so that a write to one of them changes
// nothing else.
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

// write returns how long it takes until a page is on the disk, for a thread that goes before all others.
func (d *disk) write() (time.Duration, error) {
	written := make(chan error)
	var took time.Duration
	go func() {
		runtime.LockOSThread() // for good, as in victim.watch
		if err := unix.Setpriority(unix.PRIO_PROCESS, 0, mostNice); err != nil {
			written <- os.NewSyscallError("setpriority", err)
			return
		}
		began := time.Now()
		_, err := d.file.WriteAt(d.page, d.next%pages*int64(len(d.page)))
		took = time.Since(began)
		written <- err
	}()
	if err := <-written; err != nil {
		return 0, fmt.Errorf("write a page onto the disk: %w", err)
	}
	d.next++
	return took, nil
}
