// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/base/retry"
)

// streams are the standard streams of a process that a client wants, or for which there are FIFOs.
type streams struct{ stdin, stdout, stderr bool }

// pipes are berth's ends of the standard streams of one exec process. Closing an end wakes the
// goroutines that read from it or write to it.
type pipes struct {
	dir    string
	stdin  io.WriteCloser // nil: not wanted
	stdout io.ReadCloser  // nil: not wanted
	stderr io.ReadCloser  // nil: not wanted

	once sync.Once
	keep []io.Closer // the other ends, until the shim has opened its own
}

// openFIFOs makes the directory of a process, and in it a FIFO for each stream.
func openFIFOs(dir string, want streams) (*pipes, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of exec process: %w", err)
	}
	p := &pipes{dir: dir}
	err := p.open(want)
	if err != nil {
		p.opened()
		p.close()
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return p, nil
}

func (p *pipes) open(want streams) error {
	if want.stdin {
		f, err := p.fifo("stdin", os.O_WRONLY)
		if err != nil {
			return err
		}
		p.stdin = f
	}
	if want.stdout {
		f, err := p.fifo("stdout", os.O_RDONLY)
		if err != nil {
			return err
		}
		p.stdout = f
	}
	if want.stderr {
		f, err := p.fifo("stderr", os.O_RDONLY)
		if err != nil {
			return err
		}
		p.stderr = f
	}
	return nil
}

// fifo makes a FIFO and opens berth's end. The other end is open, too, until the shim has its own:
// a reader would see an end otherwise, and a writer cannot be opened without a reader.
func (p *pipes) fifo(name string, flag int) (*os.File, error) {
	path := filepath.Join(p.dir, name)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("make FIFO %s: %w", path, err)
	}
	both, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open FIFO %s: %w", path, err)
	}
	p.keep = append(p.keep, both)
	own, err := os.OpenFile(path, flag|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open FIFO %s: %w", path, err)
	}
	return own, nil
}

// request returns the paths of the streams for containerd.
func (p *pipes) request() Request {
	var r Request
	if p.stdin != nil {
		r.Stdin = filepath.Join(p.dir, "stdin")
	}
	if p.stdout != nil {
		r.Stdout = filepath.Join(p.dir, "stdout")
	}
	if p.stderr != nil {
		r.Stderr = filepath.Join(p.dir, "stderr")
	}
	return r
}

// opened is called once the shim has opened its ends, or never will. It may be called again.
func (p *pipes) opened() {
	p.once.Do(func() {
		for _, c := range p.keep {
			_ = c.Close()
		}
	})
}

// awaitReader waits until the shim has opened its end of the standard input, or done is closed. A
// shim opens that end in a goroutine of its own, after it has answered that the process runs. Input
// written before is refused with EPIPE, and the process would see the end of its input at once.
func (p *pipes) awaitReader(done <-chan struct{}) {
	f, ok := p.stdin.(*os.File)
	if !ok {
		return // of a test
	}
	for range retry.Doubling(done, time.Millisecond, maxReaderWait) {
		if hasReader(f) {
			return
		}
	}
}

// maxReaderWait is the longest time between two looks for the shim.
const maxReaderWait = 50 * time.Millisecond

// hasReader reports whether the other end of a FIFO is open: the kernel reports an error on the end
// of a writer that has no reader. A FIFO that is closed counts as one that has.
func hasReader(f *os.File) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return true
	}
	alone := false
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, perr := unix.Poll(fds, 0)
		alone = perr == nil && n > 0 && fds[0].Revents&unix.POLLERR != 0
	})
	return err != nil || !alone
}

// close closes berth's ends. It may be called again.
func (p *pipes) close() {
	for _, c := range []io.Closer{p.stdin, p.stdout, p.stderr} {
		if c != nil {
			_ = c.Close()
		}
	}
}

// openForShim opens the FIFOs of an abandoned process, and drops its output, until the returned
// function is called. A shim that starts a process waits, with its lock held, until the other end
// of each FIFO is open: after berth was killed there is none, and the process could be neither
// killed nor deleted. And a shim that has output left waits in its deletion for a reader.
func openForShim(dir string) (done func()) {
	var open []*os.File
	for _, name := range []string{"stdin", "stdout", "stderr"} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // there is no such stream
		}
		open = append(open, f)
	}
	var copies sync.WaitGroup
	for _, f := range open {
		if filepath.Base(f.Name()) != "stdin" { // its content is for the process
			copies.Go(func() { _, _ = io.Copy(io.Discard, f) })
		}
	}
	return func() {
		for _, f := range open {
			_ = f.Close()
		}
		copies.Wait()
	}
}
