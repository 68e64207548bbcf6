// SPDX-License-Identifier: Apache-2.0

package rootless

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// initStep marks the arguments of a program that was executed again, with capabilities.
const initStep = "init"

var errNotForPeople = errors.New("this command is one that berth rootless starts: run berth rootless")

// encode returns the arguments for [Inside], before those of the command.
func encode(o Options) []string { return []string{strconv.FormatBool(o.Restart), o.Program} }

// Inside runs the command of [Options] as the first process of the namespaces, and returns its exit
// code. args are those that [Run] has put behind the command line Inside.
func Inside(args []string) (code int, err error) {
	if len(args) < 3 {
		return 0, errNotForPeople
	}
	pipe := os.NewFile(alive, "alive")
	if args[0] == initStep {
		return initialize(pipe, args[1:])
	}
	if n, err := pipe.Read(make([]byte, 1)); n == 0 {
		return 0, fmt.Errorf("wait for the IDs of the user namespace: %w", err)
	}
	at := len(os.Args) - len(args)
	return 0, syscall.Exec("/proc/self/exe", slices.Insert(slices.Clone(os.Args), at, initStep), os.Environ()) //nolint:gosec // it is this program
}

// initialize prepares the namespaces for berth, and runs the command.
func initialize(pipe *os.File, args []string) (int, error) {
	unix.CloseOnExec(alive)
	if len(args) < 3 {
		return 0, errNotForPeople
	}
	restart, program := args[0] == "true", args[1]
	go func() { // the kernel ends all processes inside with this one, which is the first
		_, _ = pipe.Read(make([]byte, 1))
		os.Exit(1)
	}()
	// The cgroup namespace is this thread's, and of the processes that it starts.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return 0, fmt.Errorf("make a cgroup namespace: %w", err)
	}
	if err := mounts(); err != nil {
		return 0, err
	}
	if err := move(filepath.Join(cgroups, own)); err != nil {
		return 0, err
	}
	if err := turnOn(cgroups); err != nil {
		return 0, err
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return 0, fmt.Errorf("set the loopback up: %w", err)
	}
	return supervise(program, args[2:], restart)
}

// crashed is the exit code of a Go program that has panicked.
const crashed = 2

// supervise runs the command until it ends by itself, and reaps orphaned processes. One that is
// killed, or that crashes, is started again if restart is set.
func supervise(program string, argv []string, restart bool) (int, error) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP, os.Interrupt)
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	environment := append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PATH=") }),
		// a user's has neither iptables nor ip
		"PATH="+os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin")
	asked := false
	for {
		p, err := os.StartProcess(program, argv, &os.ProcAttr{
			Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
			Env:   environment,
		})
		if err != nil {
			return 0, fmt.Errorf("start %s: %w", program, err)
		}
		var st unix.WaitStatus
		for ended := false; !ended; {
			select {
			case s := <-signals:
				if s != os.Interrupt { // a terminal has sent its SIGINT to the command as well
					_ = p.Signal(s)
				}
				asked = asked || s != syscall.SIGHUP
			case <-children:
				st, ended = reap(p.Pid)
			}
		}
		_ = p.Release()
		switch {
		case st.Exited() && (st.ExitStatus() != crashed || !restart || asked):
			return st.ExitStatus(), nil
		case st.Exited():
			fmt.Fprintf(os.Stderr, "berth rootless: %s has crashed, and is started again\n", program)
		case !restart || asked:
			return 128 + int(st.Signal()), nil
		default:
			fmt.Fprintf(os.Stderr, "berth rootless: %s was ended by %s, and is started again\n", program, st.Signal())
		}
		time.Sleep(time.Second) // one that is killed at once each time must not take a processor
	}
}

// reap takes all processes that have ended, and returns how the one with pid did if it is among
// them.
func reap(pid int) (st unix.WaitStatus, ended bool) {
	for {
		var one unix.WaitStatus
		switch p, err := unix.Wait4(-1, &one, unix.WNOHANG, nil); {
		case errors.Is(err, unix.EINTR):
		case err != nil || p <= 0:
			return st, ended
		case p == pid:
			st, ended = one, true
		}
	}
}
