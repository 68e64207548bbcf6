// SPDX-License-Identifier: Apache-2.0

package join

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host/pidfd"
)

// Process is a program that runs in a container. It is a child of its maker's, which reaps it.
type Process struct {
	maker    *maker
	identity pidfd.Process
	fd       *os.File // a pidfd, until it has ended
	ended    chan struct{}
	insist   sync.Once
	// Set before ended is closed; err if the code is unknown.
	code uint32
	err  error
}

// seal copies a program into memory that cannot be written to.
func seal(in io.Reader) (*os.File, error) {
	// By vm.memfd_noexec a copy cannot be executed unless that is asked for, which Linux 6.3 can be.
	fd, err := unix.MemfdCreate("berth-exec", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("berth-exec", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "berth-exec")
	_, err = io.Copy(f, in)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("copy berth-exec and seal the copy: %w", err)
	}
	return f, nil
}

// renew makes another copy of the program in the place of one that cannot be executed. Processes
// that still use the old copy keep it until they end.
func (j *Joiner) renew(old *os.File) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.program != old {
		return nil // another goroutine has already
	}
	f, err := seal(io.NewSectionReader(old, 0, 1<<30))
	if err == nil {
		j.program = f
	}
	return err
}

// Start runs a program. stdout and stderr receive its output; it reads nothing. note is called with
// the process before it executes the program, and an error keeps it from that. Start returns when
// the program is executed, or a [Refusal] if it is not for any reason: no program of the container
// has run then. It is given up when ctx ends: then the program may have run for a moment, and is
// killed.
func (p *Plan) Start(ctx context.Context, stdout, stderr *os.File, note func(pidfd.Process) error) (*Process, error) {
	proc, err := p.start(ctx, stdout, stderr, note)
	var r *Refusal
	if err != nil && !errors.As(err, &r) {
		err = &Refusal{Failed, err.Error()}
	}
	return proc, err
}

func (p *Plan) start(ctx context.Context, stdout, stderr *os.File, note func(pidfd.Process) error) (*Process, error) {
	if err := p.groups.checkRuns(); err != nil {
		return nil, err
	}
	first, err := openFirst(p.first)
	if err != nil {
		return nil, err
	}
	defer first.Close()
	unified, tasks, err := p.groups.open()
	if err != nil {
		return nil, err
	}
	defer func() { closeAll(append(tasks, unified)) }()
	message, err := p.plan.encode(p.args, len(tasks), unified != nil)
	if err != nil {
		return nil, err
	}
	null, err := p.null.open()
	if err != nil {
		return nil, err
	}
	defer null.Close()
	ours, theirs, err := sockets()
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	defer theirs.Close()
	token := newToken()
	var more []*os.File
	if unified != nil {
		more = []*os.File{unified}
	}
	m, err := p.of.fork(token, []*os.File{null, stdout, stderr, theirs, first, p.of.proc}, append(tasks, more...))
	if err != nil {
		return nil, err
	}
	_ = theirs.Close()
	stop := context.AfterFunc(ctx, func() { _ = ours.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	proc, err := m.make(ctx, ours, message, token, note)
	if err != nil {
		m.giveUp()
		return nil, err
	}
	return proc, nil
}

// make lets the process be made, noted, and execute the program.
func (m *maker) make(ctx context.Context, ours *os.File, message []byte, token string, note func(pidfd.Process) error) (*Process, error) {
	if _, err := ours.Write(message); err != nil {
		return nil, failure(ours, fmt.Errorf("send berth-exec its instructions: %w", err))
	}
	pid, err := answer(ours)
	if err != nil {
		return nil, err
	}
	proc, err := m.open(pid)
	if err != nil {
		return nil, err
	}
	if err = note(proc.identity); err == nil {
		_, err = ours.Write([]byte{'G'})
	}
	if err == nil {
		err = proc.executed(ctx, ours, token)
	}
	go proc.watch()
	if err != nil {
		_ = proc.Kill()
		return nil, err
	}
	return proc, nil
}

// openFirst opens a pidfd of a container's first process, which has not ended.
func openFirst(p pidfd.Process) (*os.File, error) {
	fd, p, err := pidfd.OpenProcess(p)
	if err != nil {
		return nil, fmt.Errorf("find the container's process: %w", err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	// One that has ended and waits to be reaped cannot be joined.
	st, err := pidfd.ReadStat(p.Pid)
	if err == nil && (st.StartTicks != p.StartTicks || st.State == 'Z') {
		err = pidfd.ErrGone
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("find the container's process: %w", err)
	}
	return f, nil
}

// sockets returns two ends. A call on ours can be given up, and theirs is for a program that
// blocks.
func sockets() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make sockets: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
		return nil, nil, fmt.Errorf("make sockets: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket"), nil
}

// newToken returns a name for a process, as long as possible and unguessable.
func newToken() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // it never fails
	return "be:" + hex.EncodeToString(b[:])
}

// rawFD returns a descriptor and leaves its mode as it is, which Fd would not. For a closed file it
// returns a number that is not open.
func rawFD(f *os.File) (fd uintptr) {
	fd = ^uintptr(0)
	raw, err := f.SyscallConn()
	if err == nil {
		_ = raw.Control(func(n uintptr) { fd = n })
	}
	return fd
}

// answer reads which process berth-exec has made.
func answer(from *os.File) (pid int, err error) {
	var b [5]byte
	if _, err := io.ReadFull(from, b[:1]); err != nil {
		return 0, fmt.Errorf("berth-exec does not answer: %w", err)
	}
	if b[0] != 'P' {
		return 0, failure(from, nil)
	}
	if _, err := io.ReadFull(from, b[1:]); err != nil {
		return 0, fmt.Errorf("berth-exec does not answer: %w", err)
	}
	return int(binary.NativeEndian.Uint32(b[1:])), nil
}

// failure reads berth-exec's report of a failure.
func failure(from *os.File, err error) error {
	b, _ := io.ReadAll(io.LimitReader(from, 1024))
	if len(b) > 0 || err == nil {
		return fmt.Errorf("berth-exec: %s", b)
	}
	return err
}

// open takes the process that a maker has made. If it is gone by now, the maker reports how it
// ended.
func (m *maker) open(pid int) (*Process, error) {
	fd, identity, err := pidfd.OpenProcess(pidfd.Process{Pid: uint32(pid)})
	if err != nil {
		return nil, fmt.Errorf("find the process: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that no thread waits for its end
		_ = unix.Close(fd)
		return nil, err
	}
	return &Process{maker: m, identity: identity, fd: os.NewFile(uintptr(fd), "pidfd"), ended: make(chan struct{})}, nil
}

// executed returns when the program is executed. The socket closes then, and a moment later the
// process has the program's name. If it closes for another reason the process keeps its name. If a
// process has ended, its maker reports which of the two it was.
func (p *Process) executed(ctx context.Context, from *os.File, token string) error {
	b, err := io.ReadAll(io.LimitReader(from, 1024))
	switch {
	case err != nil:
		return fmt.Errorf("wait for the program: %w", err)
	case len(b) > 0:
		return fmt.Errorf("berth-exec: %s", b[1:])
	}
	// A program may give itself the name: that costs it this call, and berth next to nothing.
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 50*time.Millisecond) {
		// An error means that the kernel could not be asked, as without a descriptor, or that the process
		// was reaped: neither is an answer. Another start time means that its pid was reused.
		st, err := pidfd.ReadStat(p.identity.Pid)
		if err == nil && st.StartTicks == p.identity.StartTicks && st.Program.Command != token {
			return nil
		}
		select {
		case <-p.maker.said:
			if p.maker.err == nil && !p.maker.executed {
				return errors.New("berth-exec ended before it executed the program")
			}
			return nil // without the maker's report the code is unknown, and Wait reports that
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(wait):
		}
	}
}

// watch notes how the process has ended.
func (p *Process) watch() {
	defer close(p.ended)
	defer p.fd.Close()
	<-p.maker.said
	p.code, p.err = p.maker.code, p.maker.err
	if p.err == nil {
		return
	}
	// Its maker was killed, and another process is its parent now. Its processes are ended with its
	// maker.
	if err := p.send(); err != nil {
		p.err = errors.Join(p.err, err)
		return
	}
	if raw, err := p.fd.SyscallConn(); err == nil {
		_ = raw.Read(func(fd uintptr) bool { return pidfd.Ask(int(fd)) != pidfd.Alive })
		// If orphaned processes are reparented to berth, berth must reap it.
		_ = raw.Control(func(fd uintptr) {
			_ = unix.Waitid(unix.P_PIDFD, int(fd), nil, unix.WEXITED|unix.WNOHANG, nil)
		})
	}
}

// Wait returns when the process has ended, with its exit code, which is 128+N for signal N. It
// returns ctx's error, or an error if there is no code.
func (p *Process) Wait(ctx context.Context) (uint32, error) {
	select {
	case <-p.ended:
		return p.code, p.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// Left is closed when the process has ended, and all of those that it has made as children of its
// own parent, as by clone with CLONE_PARENT. That may be long after its own end.
func (p *Process) Left() <-chan struct{} { return p.maker.gone }

// patience is how long after the end of a killed process its maker may take to report it. One that
// does not was stopped, as a container in the PID namespace of the host can.
const patience = 5 * time.Second

// Kill kills the process. One that has ended is none to kill.
func (p *Process) Kill() error {
	err := p.send()
	if err == nil {
		p.insist.Do(func() { go p.endMaker() })
	}
	return err
}

func (p *Process) send() error {
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return nil // it has ended
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = pidfd.Send(int(fd), unix.SIGKILL) }); err != nil {
		return nil // likewise
	}
	if errors.Is(sent, pidfd.ErrGone) {
		return nil
	}
	return sent
}

// endMaker kills the maker of a process that has ended without a report. The process that inherits
// it reaps it then.
func (p *Process) endMaker() {
	for {
		select {
		case <-p.ended:
			return
		case <-time.After(patience):
		}
		raw, err := p.fd.SyscallConn()
		if err != nil {
			return
		}
		var a pidfd.Answer
		_ = raw.Control(func(fd uintptr) { a = pidfd.Ask(int(fd)) })
		if a == pidfd.Gone {
			p.maker.kill()
			return
		}
	}
}
