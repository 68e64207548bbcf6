// SPDX-License-Identifier: Apache-2.0

package rootless

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// nameserver is where slirp4netns answers DNS (slirp4netns(1)).
const nameserver = "10.0.2.3"

// slirpTimeout is how long slirp4netns may take to make its interface.
const slirpTimeout = 30 * time.Second

// connect connects the network namespace of a process to the networks of the host, with the user's
// own rights, and writes a line to say if it cannot: pods reach each other all the same. end ends
// the connection.
func connect(pid int, say io.Writer) (end func()) {
	end, err := startSlirp(pid, say)
	if err != nil {
		fmt.Fprintf(say, "berth rootless: pods and pulls reach no other network: %v\n", err)
		return func() {}
	}
	return end
}

// startSlirp starts slirp4netns and waits until it has made its interface.
func startSlirp(pid int, say io.Writer) (end func(), err error) {
	program, err := exec.LookPath("slirp4netns")
	if err != nil {
		return nil, fmt.Errorf("%w: install Debian's package slirp4netns", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	// slirp4netns ends when no process has stop open any more, so also after a kill of this process
	stopped, stop, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	cmd := exec.Command(program, "--configure", "--mtu=65520", "--disable-host-loopback",
		"--ready-fd=3", "--exit-fd=4", strconv.Itoa(pid), "tap0")
	cmd.Stderr = say
	cmd.ExtraFiles = []*os.File{w, stopped}
	// a Ctrl-C is for the command, which may need the network to end
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	_ = w.Close()
	_ = stopped.Close()
	if err != nil {
		return nil, errors.Join(err, stop.Close())
	}
	end = func() {
		_ = stop.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	_ = r.SetReadDeadline(time.Now().Add(slirpTimeout))
	n, err := r.Read(make([]byte, 1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		end()
		return nil, fmt.Errorf("slirp4netns was not ready within %s", slirpTimeout)
	case n == 0:
		end()
		return nil, errors.New("slirp4netns ended before it was ready; it needs to open /dev/net/tun")
	}
	return end, nil
}
