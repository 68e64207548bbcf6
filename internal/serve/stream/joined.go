// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/heart/pod"
	"berth/internal/host/pidfd"
)

// Joiner makes processes of ExecSync without the shim, as children of berth's. It counts and logs
// the processes that it makes and those that it leaves to the shim.
type Joiner interface {
	// Prepare plans a process of a container that runs; nil leaves it to the shim.
	Prepare(ctx context.Context, t pod.Target, args []string) Joined
}

// Joined is a process that is to be made.
type Joined interface {
	// Start makes the process, and returns when the program is executed. note is called before, and
	// an error of its keeps the program from being executed. After an error no program of the
	// container has run, and the process is left to the shim; unless ctx has ended, and everything
	// that was made is killed.
	Start(ctx context.Context, stdout, stderr *os.File, note func(pidfd.Process) error) (Member, error)
}

// Member is a process that runs.
type Member interface {
	// Wait returns when the process has ended, with its exit code, or when ctx ends.
	Wait(ctx context.Context) (code uint32, err error)
	// Kill kills the process. It succeeds if the process has ended.
	Kill() error
	// Left is closed once nothing is left of the process: neither its maker nor its children that
	// berth has to reap. That may be long after its end.
	Left() <-chan struct{}
}

// noteName is the file in the directory of a process with its identity. One of a shim has none.
const noteName = "process"

// openPipes makes the directory of a process and pipes for its output. The other ends are for the
// process itself: it gets them as they are, and so they block.
func openPipes(dir string) (_ *pipes, stdout, stderr *os.File, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, nil, nil, fmt.Errorf("make directory of exec process: %w", err)
	}
	p := &pipes{dir: dir}
	var ends [2]*os.File
	var own [2]*os.File
	for i := range ends {
		if own[i], ends[i], err = pipe(); err != nil {
			break
		}
		p.keep = append(p.keep, ends[i])
		if i == 0 {
			p.stdout = own[i]
		} else {
			p.stderr = own[i]
		}
	}
	if err != nil {
		p.opened()
		p.close()
		return nil, nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	return p, ends[0], ends[1], nil
}

func pipe() (r, w *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make a pipe: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil { // it can be closed while it is read from
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
		return nil, nil, fmt.Errorf("make a pipe: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe"), nil
}

// join makes the process without the shim.
func (p *process) join(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.unwanted:
		case <-p.s.stopping:
		case <-p.containerEnded:
		case <-ctx.Done():
		}
		cancel()
	}()
	member, err := p.joined.Start(ctx, p.ends[0], p.ends[1], func(of pidfd.Process) error {
		b, err := json.Marshal(of)
		if err != nil {
			return fmt.Errorf("encode the note of an exec process: %w", err)
		}
		return os.WriteFile(filepath.Join(p.dir, noteName), b, 0o600)
	})
	if err != nil {
		return err
	}
	p.member = member
	return nil
}

// resort prepares a process for the shim that could not be made without it.
func (p *process) resort(ctx context.Context) (Request, error) {
	what, err := p.specify(ctx)
	if err != nil {
		return Request{}, err
	}
	p.pipes.opened()
	p.pipes.close()
	if err := os.RemoveAll(p.dir); err != nil {
		return Request{}, fmt.Errorf("remove directory of exec process: %w", err)
	}
	if p.pipes, err = p.s.pipes(p.dir, p.streams); err != nil {
		return Request{}, err
	}
	r := p.pipes.request()
	r.Process = what
	return r, nil
}

// endMember ends the process and returns once it was reaped.
func (p *process) endMember() error {
	if err := p.member.Kill(); err != nil {
		return fmt.Errorf("kill exec process: %w", err)
	}
	ctx, cancel := context.WithTimeout(p.s.life, stepTimeout)
	defer cancel()
	// An end without a code is an end, too.
	if _, err := p.member.Wait(ctx); err != nil && ctx.Err() != nil {
		return err
	}
	return nil
}

// endNoted ends the process that an earlier berth has noted in a directory. It reports whether
// there is a note: without one the process is a shim's.
func (p *process) endNoted(ctx context.Context) (noted bool, err error) {
	b, err := os.ReadFile(filepath.Join(p.dir, noteName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	var of pidfd.Process
	if json.Unmarshal(b, &of) != nil || of.StartTicks == 0 {
		return true, nil // berth was killed while it wrote: the process has never gone on
	}
	fd, _, err := pidfd.OpenProcess(of)
	if errors.Is(err, pidfd.ErrGone) {
		return true, nil
	}
	if err != nil {
		return true, err
	}
	defer unix.Close(fd)
	if err := pidfd.Send(fd, unix.SIGKILL); err != nil && !errors.Is(err, pidfd.ErrGone) {
		return true, fmt.Errorf("kill exec process: %w", err)
	}
	if a := pidfd.WaitEnd(ctx, fd, time.Second); a != pidfd.Gone {
		return true, fmt.Errorf("exec process %d was killed: it is %s", of.Pid, a)
	}
	return true, nil
}
