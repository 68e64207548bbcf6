// SPDX-License-Identifier: Apache-2.0

package pidfd

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/base/exit"
)

// endVariable names, to this program started again, the way in which it is to end.
const endVariable = "BERTH_TEST_END"

// This is before everything else, since the first thread of a program runs nothing of Go's but what
// initialises it, and main.
func init() {
	if way := os.Getenv(endVariable); way != "" {
		debug.SetGCPercent(-1) // a thread that is gone cannot be stopped
		runtime.LockOSThread()
		_, _ = os.Stdin.Read(make([]byte, 1)) // until it is watched
		threadWays[way]()
		select {}
	}
}

// otherThread runs f on a thread that is not the first.
func otherThread(f func()) {
	go func() {
		runtime.LockOSThread()
		f()
	}()
}

// leave ends this thread alone, as pthread_exit(3) does.
func leave(code uintptr) { _, _, _ = unix.Syscall(unix.SYS_EXIT, code, 0, 0) }

// leaveGroup ends all threads. It does not run what Go has for an end.
func leaveGroup(code uintptr) { _, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, code, 0, 0) }

// afterFirst waits until the first thread has ended, while others run.
func afterFirst() {
	for {
		if st, err := ReadStat(uint32(os.Getpid())); err == nil && st.State == 'Z' {
			return
		}
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
}

// refuse makes the kernel answer getppid(2) of this thread with an action of seccomp, and calls it.
func refuse(action uint32) {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_GETPPID},
		{Code: unix.BPF_RET | unix.BPF_K, K: action},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	_ = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
	unix.Getppid()
}

// threadWays are the ways to end that need more than one thread.
var threadWays = map[string]func(){
	"exit_group by another thread": func() { otherThread(func() { leaveGroup(9) }) },
	"the first thread leaves, then another one": func() {
		otherThread(func() { afterFirst(); leaveGroup(9) })
		leave(3)
	},
	"the first thread leaves with 0, then another one": func() {
		otherThread(func() { afterFirst(); leaveGroup(9) })
		leave(0)
	},
	"the first thread leaves, then a signal": func() {
		otherThread(func() { afterFirst(); _ = unix.Kill(os.Getpid(), unix.SIGKILL) })
		leave(3)
	},
	"the first thread leaves, then another one executes": func() {
		otherThread(func() { afterFirst(); _ = unix.Exec("/bin/sh", []string{"sh", "-c", "exit 6"}, nil) })
		leave(3)
	},
	"another thread executes": func() {
		otherThread(func() { _ = unix.Exec("/bin/sh", []string{"sh", "-c", "exit 6"}, nil) })
	},
	"seccomp ends the process":                    func() { refuse(unix.SECCOMP_RET_KILL_PROCESS) },
	"seccomp ends the process for another thread": func() { otherThread(func() { refuse(unix.SECCOMP_RET_KILL_PROCESS) }) },
	"seccomp ends the first thread, then another one": func() {
		otherThread(func() { afterFirst(); leaveGroup(9) })
		refuse(unix.SECCOMP_RET_KILL_THREAD)
	},
	// Neither is first. This is the race that the kernel does not decide.
	"the first thread leaves while another one does": func() {
		begun := make(chan struct{})
		otherThread(func() { <-begun; leaveGroup(9) })
		close(begun)
		leave(3)
	},
	"the first thread reboots": func() { _ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) },
	"another thread reboots":   func() { otherThread(func() { _ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) }) },
	"a child reboots and it waits": func() {
		otherThread(func() {
			c := exec.Command("/proc/self/exe")
			c.Env = append(os.Environ(), endVariable+"=the first thread reboots")
			_ = c.Run()
		})
	},
}

// call is a system call that a process of one thread makes.
type call [4]uintptr

// fork makes a process of one thread, which Go cannot: a copy of this one that waits for a byte and
// then makes a call over and over. It may do nothing else, as there are no other threads in it.
//
//go:norace
//go:nosplit
func fork(flags uintptr, wait int, c *call) (pid uintptr, errno syscall.Errno) {
	var b [1]byte
	pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, flags|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if pid != 0 || errno != 0 {
		return pid, errno
	}
	syscall.RawSyscall(unix.SYS_READ, uintptr(wait), uintptr(unsafe.Pointer(&b[0])), 1)
	for {
		syscall.RawSyscall6(c[0], c[1], c[2], c[3], 0, 0, 0)
	}
}

func reboot(how uintptr) call {
	return call{unix.SYS_REBOOT, unix.LINUX_REBOOT_MAGIC1, unix.LINUX_REBOOT_MAGIC2, how}
}

// way is a way to end, and what the kernel's witnesses answer about it.
type way struct {
	name  string
	flags uintptr // of clone(2)
	// One of these: of a process of one thread, of a shell, of this program.
	call   *call
	script string
	thread string
	kill   unix.Signal // from outside, instead of the byte that it waits for
	traced bool

	// code is what the parent is told, and what the stat of the zombie has.
	code uint32
	// first is what a pidfd has after that, where it differs; several where it may be either.
	first []uint32
}

func ways() []way {
	list := []way{
		{name: "exit", call: &call{unix.SYS_EXIT, 7}, code: 7},
		{name: "exit_group", call: &call{unix.SYS_EXIT_GROUP, 7}, code: 7},
		{name: "exit with 0", call: &call{unix.SYS_EXIT, 0}, code: 0},
		{name: "a core is dumped", script: "ulimit -c unlimited; kill -ABRT $$", code: 134},
		{name: "traced", script: "exit 7", traced: true, code: 7},
		{name: "killed from outside", call: &call{unix.SYS_PPOLL}, kill: unix.SIGKILL, code: 137},
		{name: "init, exit", flags: unix.CLONE_NEWPID, call: &call{unix.SYS_EXIT, 7}, code: 7},
		{name: "init, killed from outside", flags: unix.CLONE_NEWPID, call: &call{unix.SYS_PPOLL}, kill: unix.SIGKILL, code: 137},
		{name: "init, ended from outside by SIGKILL while traced", flags: unix.CLONE_NEWPID, script: "sleep 1000", traced: true, kill: unix.SIGKILL, code: 137},
	}
	for sig := unix.Signal(1); sig < 65; sig++ {
		switch sig {
		case unix.SIGCHLD, unix.SIGCONT, unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGURG, unix.SIGWINCH:
			continue // ends nothing
		case 32, 33: // glibc's own
			continue
		}
		list = append(list, way{name: fmt.Sprint("signal ", int(sig)), script: fmt.Sprintf("kill -%d $$", int(sig)), code: 128 + uint32(sig)})
	}
	for how, code := range map[uintptr]uint32{
		unix.LINUX_REBOOT_CMD_RESTART:   129,
		unix.LINUX_REBOOT_CMD_HALT:      130,
		unix.LINUX_REBOOT_CMD_POWER_OFF: 130,
	} {
		c := reboot(how)
		for name, flags := range map[string]uintptr{"init": unix.CLONE_NEWPID, "init in a user namespace": unix.CLONE_NEWPID | unix.CLONE_NEWUSER} {
			list = append(list, way{name: fmt.Sprintf("%s, reboot %x", name, how), flags: flags, call: &c, code: code, first: []uint32{0}})
		}
	}
	for name := range threadWays {
		w := way{name: name, thread: name}
		switch {
		case strings.Contains(name, "reboots"):
			// With several threads it is the last of them that reboots the namespace. The first one has
			// ended by SIGKILL, with 0, or, if it was not the last, as the whole process.
			w.flags, w.code, w.first = unix.CLONE_NEWPID, 129, []uint32{137, 0, 129}
		case strings.Contains(name, "while another"):
			w.code, w.first = 9, []uint32{3, 9}
		case strings.Contains(name, "signal"):
			w.code = 137
		case strings.Contains(name, "executes"):
			w.code = 6
		case strings.Contains(name, "seccomp ends the process"):
			w.code = 128 + uint32(unix.SIGSYS)
		default:
			w.code = 9
		}
		if strings.Contains(name, "first thread leaves, then") || strings.Contains(name, "ends the first thread") {
			w.first = []uint32{w.code, 3, 128 + uint32(unix.SIGSYS)} // Linux 6.15 had that of the first thread
		}
		list = append(list, w)
	}
	return list
}

// begin makes the process of a way, a child of this one, which ends once end was called.
func (w way) begin(t *testing.T) (pid int, end func()) {
	t.Helper()
	r, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), in.Close() })
	end = func() {
		if w.kill != 0 {
			err = unix.Kill(pid, w.kill)
		} else {
			_, err = in.Write([]byte("\n"))
		}
		if err != nil {
			t.Error(err)
		}
	}
	if w.call != nil {
		p, errno := fork(w.flags, int(r.Fd()), w.call)
		if errno != 0 {
			t.Fatal(errno)
		}
		pid = int(p)
		return pid, end
	}
	cmd := exec.Command("/bin/sh", "-c", "read x; "+w.script)
	if w.thread != "" {
		cmd = exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), endVariable+"="+w.thread)
	}
	cmd.Dir, cmd.Stdin = t.TempDir(), r
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: w.flags, Ptrace: w.traced}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid, end
}

// PROPERTIES 49: each way in which a process can end, and what the kernel answers to each witness. What
// a parent is told and what the stat of a zombie has is the same in each, on every kernel. A pidfd has
// the code of the first thread once the process was reaped, which differs after reboot(2) and where the
// first thread leaves while another one ends the process. A kernel that answers otherwise fails this.
func TestEachWayToEndHasOneCode(t *testing.T) {
	// Under nohup this process ignores SIGHUP, and so would its children. One that is caught is not
	// ignored by them.
	caught := make(chan os.Signal, 1)
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(caught, s)
		}
	}
	defer signal.Stop(caught)
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			if w.traced { // the thread that started it is its tracer
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
			}
			h := collect(t)
			pid, end := w.begin(t)
			if w.traced {
				untilStopped(t, pid)
			}
			fd, err := Open(pid)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			// One watcher reads the zombie, the other comes once it was reaped.
			if _, err := h.Watch("zombie", Process{Pid: uint32(pid)}); err != nil {
				t.Fatal(err)
			}
			if w.traced {
				if a := Ask(fd); a != Alive {
					t.Errorf("%v of a process that is stopped by its tracer", a)
				}
				if _, known := Code(fd); known {
					t.Error("a process that is stopped by its tracer has a code")
				}
				if err := unix.PtraceCont(pid, 0); err != nil {
					t.Fatal(err)
				}
			}
			end()
			told := untilEnded(t, pid)
			zombie := h.last("zombie")
			st, err := ReadStat(uint32(pid))
			if err != nil || st.State != 'Z' || st.Threads != 1 {
				t.Fatalf("stat of the zombie: %+v, %v", st, err)
			}
			var ws unix.WaitStatus
			if _, err := unix.Wait4(pid, &ws, 0, nil); err != nil {
				t.Fatal(err)
			}
			if told != w.code || exitCode(ws) != w.code || exitCode(unix.WaitStatus(st.ExitStatus)) != w.code {
				t.Errorf("waitid: %d, wait4: %d (%#x), stat: %#x; want %d", told, exitCode(ws), ws, st.ExitStatus, w.code)
			}
			if !zombie.Measured || zombie.Code != w.code || zombie.FirstThread || zombie.Origin != exit.Kernel {
				t.Errorf("of the zombie: %+v, want %d", zombie, w.code)
			}
			code, known := Code(fd)
			if known != h.Exact() {
				t.Fatalf("after it was reaped the pidfd has a code: %v", known)
			}
			first := w.first
			if first == nil {
				first = []uint32{w.code}
			}
			if known && !slices.Contains(first, code) {
				t.Errorf("after it was reaped: %d, want one of %v", code, first)
			}
			late := &watch{id: "reaped", fd: fd, proc: Process{Pid: uint32(pid)}}
			var f exit.Fact
			h.measure(&f, late, true)
			if f.Measured != known || f.FirstThread != known || known && f.Code != code {
				t.Errorf("the fact after it was reaped: %+v, and its code is %d, %v", f, code, known)
			}
		})
	}
}

// untilStopped waits until a tracee is stopped.
func untilStopped(t *testing.T, pid int) {
	t.Helper()
	var ws unix.WaitStatus
	if _, err := unix.Wait4(pid, &ws, unix.WUNTRACED, nil); err != nil || !ws.Stopped() {
		t.Fatalf("%#x, %v", ws, err)
	}
}

// untilEnded waits until a child has ended, does not reap it, and returns what waitid(2) says.
func untilEnded(t *testing.T, pid int) (code uint32) {
	t.Helper()
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			t.Fatal(err)
		}
	}
	// si_code and, behind si_pid and si_uid, si_status.
	status := *(*int32)(unsafe.Add(unsafe.Pointer(&info), 24))
	if info.Code == 1 { // CLD_EXITED
		return uint32(status)
	}
	return 128 + uint32(status)
}

// PROPERTIES 49: the stat of a zombie is read while its parent reaps it. It says Z, and has no
// thread: its status is the first thread's by then, which was 0 of a container that had rebooted.
func TestTheStatOfAZombieThatIsReapedMeanwhileIsNotTaken(t *testing.T) {
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	i := bytes.LastIndexByte(b, ')') + 2
	f := strings.Fields(string(b[i:]))
	f[0], f[20-3] = "Z", "0"
	st, err := parseStat([]byte(string(b[:i]) + strings.Join(f, " ")))
	if err != nil || st.State != 'Z' || st.Threads != 0 {
		t.Errorf("got %+v, %v", st, err)
	}
	f[20-3] = "many"
	if _, err := parseStat([]byte(string(b[:i]) + strings.Join(f, " "))); err == nil {
		t.Error("a number of threads that is not one is taken")
	}
}

// PROPERTIES 49: many namespaces are rebooted, and reaped at once. Whether the zombie or the pidfd is
// read is a race, and a code that is not the process's is never stated as such.
func TestACodeOfTheFirstThreadIsNotTakenForTheProcesss(t *testing.T) {
	c := reboot(unix.LINUX_REBOOT_CMD_RESTART)
	h := collect(t)
	for n := range 50 {
		id := strconv.Itoa(n)
		pid, end := way{flags: unix.CLONE_NEWPID, call: &c}.begin(t)
		if _, err := h.Watch(id, Process{Pid: uint32(pid)}); err != nil {
			t.Fatal(err)
		}
		end()
		var ws unix.WaitStatus
		if _, err := unix.Wait4(pid, &ws, 0, nil); err != nil || exitCode(ws) != 129 {
			t.Fatalf("%#x, %v", ws, err)
		}
		if f := h.last(id); f.Measured && f.Code != 129 && !f.FirstThread {
			t.Errorf("%d: %+v", n, f)
		}
	}
}
