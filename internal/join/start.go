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
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/pidfd"
)

// Process is a program that runs in a container. It is a child of berth's, which reaps it.
type Process struct {
	pid   int
	fd    *os.File // a pidfd, until it is reaped
	ended chan struct{}
	// Once it has ended, and err if nobody knows how.
	code uint32
	err  error
}

// seal copies a program into memory that nobody can write to.
func seal(in io.Reader) (*os.File, error) {
	// By vm.memfd_noexec a copy cannot be executed unless that is asked for, which Linux 6.3 can be.
	fd, err := unix.MemfdCreate("berth-exec", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("berth-exec", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "berth-exec") //nolint:gosec // a descriptor
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

// renew makes another copy of the program in the place of one that cannot be executed. What is still
// in use of that one is closed once nothing refers to it.
func (j *Joiner) renew(old *os.File) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.program != old {
		return nil // somebody has already
	}
	f, err := seal(io.NewSectionReader(old, 0, 1<<30))
	if err == nil {
		j.program = f
	}
	return err
}

// Start runs a program. stdout and stderr are what it writes to; it reads nothing. note is called
// with the process before it executes the program, and an error keeps it from that. Start returns
// when the program is executed, or a [Refusal] when it is not, for whatever reason: nothing of the
// container's has run then. It is given up when ctx ends: then the program may have run for a
// moment, and is killed.
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
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	ours, theirs, err := sockets()
	if err != nil {
		return nil, err
	}
	token := newToken()
	files := append([]*os.File{null, stdout, stderr, theirs, first, p.of.proc}, tasks...)
	if unified != nil {
		files = append(files, unified)
	}
	helper, err := p.of.fork(token, files)
	_ = theirs.Close()
	if err != nil {
		_ = ours.Close()
		return nil, err
	}
	defer ours.Close()
	maker := 0
	defer func() {
		if maker != 0 {
			helper.reap(maker)
		} else {
			helper.abandon()
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = ours.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := ours.Write(message); err != nil {
		return nil, failure(ours, fmt.Errorf("tell berth-exec what to do: %w", err))
	}
	by, pid, err := answer(ours)
	if err != nil {
		return nil, err
	}
	proc, identity, err := adopt(pid)
	if err != nil {
		return nil, err
	}
	maker = by
	err = proc.goOn(ctx, ours, token, func() error { return note(identity) })
	if err != nil {
		_ = proc.Kill()
	}
	go proc.watch() // not before: what was reaped cannot be asked for its name
	if err != nil {
		return nil, err
	}
	return proc, nil
}

// goOn notes the process, and lets it execute the program.
func (p *Process) goOn(ctx context.Context, ours *os.File, token string, note func() error) error {
	if err := note(); err != nil {
		return err
	}
	if _, err := ours.Write([]byte{'G'}); err != nil {
		return fmt.Errorf("let the process go on: %w", err)
	}
	return executed(ctx, ours, p, token)
}

// openFirst opens a pidfd of a container's first process, which has not ended.
func openFirst(p pidfd.Process) (*os.File, error) {
	fd, p, err := pidfd.OpenProcess(p)
	if err != nil {
		return nil, fmt.Errorf("find the container's process: %w", err)
	}
	f := os.NewFile(uintptr(fd), "pidfd") //nolint:gosec // a descriptor
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

// sockets returns two ends. A call on ours can be given up, and theirs is for a program that blocks.
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
	return os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket"), nil //nolint:gosec // descriptors
}

// newToken is a name for a process, as long as one can be, that nobody guesses.
func newToken() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // it never fails
	return "be:" + hex.EncodeToString(b[:])
}

// helper is berth-exec until it has made the process that executes the program. pid is its first
// process, and that of its process group.
type helper struct{ pid int }

// fork starts berth-exec with these descriptors from 0 on. It is in no group of the container's yet:
// until the new process executes berth-exec, this thread waits in the kernel, and with it whoever
// forks or collects garbage; and the memory of the new process is berth's until then.
func (j *Joiner) fork(token string, files []*os.File) (helper, error) {
	for again := true; ; again = false {
		j.mu.Lock()
		program := j.program
		j.mu.Unlock()
		attr := &syscall.ProcAttr{Dir: "/", Env: []string{}, Sys: &syscall.SysProcAttr{Setpgid: true}}
		for _, f := range files {
			attr.Files = append(attr.Files, rawFD(f))
		}
		// What is not among these may have been replaced by the time that it is executed (Go's #61751).
		path := fmt.Sprintf("/proc/self/fd/%d", len(attr.Files))
		attr.Files = append(attr.Files, rawFD(program))
		pid, err := syscall.ForkExec(path, []string{"berth-exec", token}, attr)
		runtime.KeepAlive(program)
		switch {
		case err == nil:
			return helper{pid}, nil
		case !again || !errors.Is(err, unix.ETXTBSY) && !errors.Is(err, unix.EACCES):
			return helper{}, fmt.Errorf("start berth-exec: %w", err)
		}
		// A container that executed the copy by a link to /proc/self/exe has it open for writing,
		// or has changed its mode: that it can, and nothing else.
		if err := j.renew(program); err != nil {
			return helper{}, err
		}
	}
}

// rawFD returns a descriptor and leaves its mode as it is, which Fd would not. That of a file that was
// closed is one that is not open.
func rawFD(f *os.File) (fd uintptr) {
	fd = ^uintptr(0)
	raw, err := f.SyscallConn()
	if err == nil {
		_ = raw.Control(func(n uintptr) { fd = n })
	}
	return fd
}

// reap reaps berth-exec, which has made its child in the process maker, and ends.
func (h helper) reap(maker int) {
	for _, pid := range slices.Compact([]int{h.pid, maker}) {
		var ws unix.WaitStatus
		if got, err := unix.Wait4(pid, &ws, unix.WNOHANG, nil); err == nil && got == 0 {
			go func() { _, _ = reap(pid) }()
		}
	}
}

// abandon ends berth-exec and all that it has made, of which berth may not have been told. A process
// in a PID namespace has to be reaped: until then the container itself cannot end.
func (h helper) abandon() {
	_ = unix.Kill(-h.pid, unix.SIGKILL) // its first process was not reaped, so the number is no other group's
	go func() {
		for {
			if _, err := reap(-h.pid); err != nil {
				return // there is none left
			}
		}
	}()
}

// reap waits for the end of a child, or of one of a group, which is -pid. In a group that is frozen
// this may take until it is thawed.
func reap(pid int) (ws unix.WaitStatus, err error) {
	for {
		if _, err = unix.Wait4(pid, &ws, 0, nil); !errors.Is(err, unix.EINTR) {
			return ws, err
		}
	}
}

// answer reads which process berth-exec has made, and in which one of its own.
func answer(from *os.File) (maker, pid int, err error) {
	var b [9]byte
	if _, err := io.ReadFull(from, b[:1]); err != nil {
		return 0, 0, fmt.Errorf("berth-exec does not answer: %w", err)
	}
	if b[0] != 'P' {
		return 0, 0, failure(from, nil)
	}
	if _, err := io.ReadFull(from, b[1:]); err != nil {
		return 0, 0, fmt.Errorf("berth-exec does not answer: %w", err)
	}
	return int(binary.NativeEndian.Uint32(b[1:])), int(binary.NativeEndian.Uint32(b[5:])), nil
}

// failure reads what berth-exec could not do.
func failure(from *os.File, err error) error {
	b, _ := io.ReadAll(io.LimitReader(from, 1024))
	if len(b) > 0 || err == nil {
		return fmt.Errorf("berth-exec: %s", b)
	}
	return err
}

// adopt takes over a child.
func adopt(pid int) (*Process, pidfd.Process, error) {
	fd, identity, err := pidfd.OpenProcess(pidfd.Process{Pid: uint32(pid)}) //nolint:gosec // a pid
	if err != nil {
		return nil, pidfd.Process{}, fmt.Errorf("find the process: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that no thread waits for its end
		_ = unix.Close(fd)
		return nil, pidfd.Process{}, err
	}
	p := &Process{pid: pid, fd: os.NewFile(uintptr(fd), "pidfd"), ended: make(chan struct{})} //nolint:gosec // a descriptor
	return p, identity, nil
}

// executed returns when the program is executed. The socket closes then, and a moment later the
// process has the program's name. Where it closes for another reason the process keeps its name.
func executed(ctx context.Context, from *os.File, p *Process, token string) error {
	b, err := io.ReadAll(io.LimitReader(from, 1024))
	switch {
	case err != nil:
		return fmt.Errorf("wait for the program: %w", err)
	case len(b) > 0:
		return fmt.Errorf("berth-exec: %s", b[1:])
	}
	// A program may give itself the name: that costs it this call, and berth next to nothing.
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 50*time.Millisecond) {
		st, err := pidfd.ReadStat(uint32(p.pid)) //nolint:gosec // a pid
		switch {
		case err != nil: // the kernel could not be asked, as without a descriptor: that is no answer
		case st.Program.Command != token:
			return nil
		case st.State == 'Z':
			return errors.New("berth-exec ended before it executed the program")
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		time.Sleep(wait)
	}
}

// watch reaps the process.
func (p *Process) watch() {
	defer close(p.ended)
	defer p.fd.Close()
	raw, err := p.fd.SyscallConn()
	var ws unix.WaitStatus
	if err == nil {
		err = raw.Read(func(uintptr) bool {
			var pid int
			pid, p.err = unix.Wait4(p.pid, &ws, unix.WNOHANG, nil)
			return pid == p.pid || p.err != nil && !errors.Is(p.err, unix.EINTR)
		})
	}
	if err != nil { // it cannot be waited for without a thread
		ws, p.err = reap(p.pid)
	}
	switch {
	case p.err != nil:
		p.err = fmt.Errorf("wait for the process: %w", p.err)
	case ws.Signaled():
		p.code = 128 + uint32(ws.Signal()) //nolint:gosec // a signal
	default:
		p.code = uint32(ws.ExitStatus()) //nolint:gosec // 0 to 255
	}
}

// Wait returns when the process has ended and was reaped, with its exit code, which is 128+N for
// signal N. The error is that of ctx, or says that there is no code.
func (p *Process) Wait(ctx context.Context) (uint32, error) {
	select {
	case <-p.ended:
		return p.code, p.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// Kill kills the process. One that has ended is none to kill.
func (p *Process) Kill() error {
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return nil // it was reaped
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = pidfd.Send(int(fd), unix.SIGKILL) }); err != nil { //nolint:gosec // a descriptor
		return nil // likewise
	}
	if errors.Is(sent, pidfd.ErrGone) {
		return nil
	}
	return sent
}
