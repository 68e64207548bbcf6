// SPDX-License-Identifier: Apache-2.0

package rootless

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Options describe the command to run in the namespaces. All of them are needed, but for Restart.
type Options struct {
	Program string   // path of the command
	Args    []string // its name, and its arguments
	Restart bool     // start the command again when a signal has ended it that Run has not sent
	Inside  []string // command line of this program that calls [Inside]
	Err     io.Writer
}

// alive is the descriptor of a pipe in the first process of the namespaces. A byte means that the
// IDs are mapped, and the pipe's end that the process outside has ended.
const alive = 3

// Run runs a command in namespaces of the user's own until it ends, and returns its exit code.
// SIGTERM and SIGHUP are passed on. An error names the permission that this host or its
// administrator would have to give to the user.
func Run(o Options) (code int, err error) {
	if os.Getuid() == 0 {
		return 0, errors.New("berth rootless is for a user without root: as root, run the command without it")
	}
	ids, err := findIDs()
	if err != nil {
		return 0, err
	}
	group, err := enterGroup()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, group.leave()) }()

	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer w.Close()
	child := exec.Command("/proc/self/exe", append(append(o.Inside, encode(o)...), o.Args...)...)
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.ExtraFiles = []*os.File{r}
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
			unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		UseCgroupFD: true,
		CgroupFD:    int(group.dir.Fd()),
	}
	err = child.Start()
	_ = r.Close()
	if err != nil {
		return 0, fmt.Errorf("make a user namespace: %w: the kernel may forbid it to users (user.max_user_namespaces, "+
			"kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns in /proc/sys)", err)
	}
	fail := func(err error) (int, error) {
		_ = child.Process.Kill()
		_ = child.Wait()
		return 0, err
	}
	if err := ids.mapTo(child.Process.Pid); err != nil {
		return fail(err)
	}
	end := connect(child.Process.Pid, o.Err)
	defer end()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	if _, err := w.Write([]byte{1}); err != nil {
		return fail(err)
	}
	fmt.Fprintf(o.Err, "berth rootless: process %d is the first in the namespaces\n", child.Process.Pid)
	return wait(child, signals)
}

// wait passes signals on until the first process of the namespaces has ended. A terminal has sent
// its SIGINT to the command already.
func wait(child *exec.Cmd, signals <-chan os.Signal) (int, error) {
	done := make(chan error, 1)
	go func() { done <- child.Wait() }()
	for {
		select {
		case s := <-signals:
			switch {
			case s != os.Interrupt:
				_ = child.Process.Signal(s)
			case !term.IsTerminal(int(os.Stdin.Fd())):
				_ = child.Process.Signal(syscall.SIGTERM)
			}
		case err := <-done:
			if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
				return 0, err
			}
			if st := child.ProcessState; st.ExitCode() >= 0 {
				return st.ExitCode(), nil
			}
			return 0, fmt.Errorf("the first process of the namespaces ended: %s", child.ProcessState)
		}
	}
}
