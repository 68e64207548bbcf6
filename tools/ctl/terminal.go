// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal is a person's terminal in raw mode: every key, Ctrl-C too, goes to the process in the
// container.
type terminal struct {
	file    *os.File
	restore func()
}

// rawTerminal puts the terminal that r is into raw mode. The caller calls restore on every way out;
// it may be called more than once, from any goroutine.
func rawTerminal(r io.Reader) (*terminal, error) {
	f, ok := r.(*os.File)
	if !ok || !term.IsTerminal(descriptor(f)) {
		return nil, errors.New("the standard input is not a terminal; leave out --tty")
	}
	before, err := term.MakeRaw(descriptor(f))
	if err != nil {
		return nil, err
	}
	return &terminal{f, sync.OnceFunc(func() { _ = term.Restore(descriptor(f), before) })}, nil
}

// follow calls resize with the size of the terminal, now and whenever that changes, until the
// function that it returns is called.
func (t *terminal) follow(resize func(width, height int)) (stop func()) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, unix.SIGWINCH)
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			if width, height, err := term.GetSize(descriptor(t.file)); err == nil {
				resize(width, height)
			}
			select {
			case <-changed:
			case <-end:
				return
			}
		}
	})
	return func() {
		signal.Stop(changed)
		close(end)
		wg.Wait()
	}
}

func descriptor(f *os.File) int { return int(f.Fd()) }
