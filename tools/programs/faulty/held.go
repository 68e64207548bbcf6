// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// hold is the program of a container that one SIGKILL does not end: a child traces each of its
// threads, and lets none of them pass its exit. That needs no privilege. It prints "held" once that
// is so.
func hold(args []string) {
	if len(args) == 0 {
		signal.Ignore(unix.SIGTERM)
		_ = unix.Prctl(unix.PR_SET_PTRACER, unix.PR_SET_PTRACER_ANY, 0, 0, 0) // where Yama asks for it
		child := exec.Command("/proc/self/exe", strconv.Itoa(os.Getpid()))
		child.Args[0] = os.Args[0]
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Run(); err != nil {
			fmt.Println(err)
		}
		return
	}
	runtime.LockOSThread() // which is the tracer
	threads, err := os.ReadDir("/proc/" + args[0] + "/task")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for _, e := range threads {
		tid, _ := strconv.Atoi(e.Name())
		if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, unix.PTRACE_O_TRACEEXIT, 0, 0); errno != 0 {
			fmt.Println("trace:", errno)
			os.Exit(1)
		}
	}
	fmt.Println("held")
	for {
		var status unix.WaitStatus
		tid, err := unix.Wait4(-1, &status, unix.WALL, nil)
		if err != nil && err != unix.EINTR { //nolint:errorlint // a number
			fmt.Println("wait:", err)
			os.Exit(1)
		}
		if event := int(status) >> 16; status.Stopped() && event != unix.PTRACE_EVENT_EXIT {
			sig := status.StopSignal()
			if event != 0 {
				sig = 0
			}
			_ = syscall.PtraceCont(tid, int(sig))
		}
	}
}
