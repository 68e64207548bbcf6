// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Terminal is a pseudo terminal: a person is at one side, and a command at the other one.
type Terminal struct {
	// TTY is the side of the command. It is open until the test ends.
	TTY *os.File

	keyboard *os.File // the side of the person
}

// OpenTerminal makes a pseudo terminal of this size, in characters. Another goroutine writes its
// output to screen, until the test ends.
func OpenTerminal(t *testing.T, width, height uint16, screen io.Writer) *Terminal {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &Terminal{keyboard: keyboard}
	number := 0
	p.control(t, func(fd int) (err error) {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		number, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		return err
	})
	if p.TTY, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	p.Resize(t, width, height)
	read := make(chan struct{})
	go func() {
		_, _ = io.Copy(screen, keyboard) // until the terminal is closed
		close(read)
	}()
	t.Cleanup(func() {
		_ = keyboard.Close() // it hangs up on the readers of the other side
		<-read
		_ = p.TTY.Close()
	})
	return p
}

// control calls f without taking the descriptor from Go's poller, as Fd would.
func (p *Terminal) control(t *testing.T, f func(fd int) error) {
	t.Helper()
	raw, err := p.keyboard.SyscallConn()
	if err == nil {
		if cerr := raw.Control(func(fd uintptr) { err = f(int(fd)) }); err == nil {
			err = cerr
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Resize changes the size of the terminal. The kernel notifies the command with SIGWINCH if this is
// its controlling terminal.
func (p *Terminal) Resize(t *testing.T, width, height uint16) {
	t.Helper()
	p.control(t, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width})
	})
}

// Echoes reports whether the terminal shows the input, as it does when it is not in raw mode.
func (p *Terminal) Echoes(t *testing.T) (on bool) {
	t.Helper()
	p.control(t, func(fd int) error {
		mode, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		on = err == nil && mode.Lflag&unix.ECHO != 0
		return err
	})
	return on
}

// Type types text.
func (p *Terminal) Type(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(p.keyboard, text); err != nil {
		t.Fatal(err)
	}
}
