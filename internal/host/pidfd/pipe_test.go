// SPDX-License-Identifier: Apache-2.0

package pidfd

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// PROPERTIES 53: what is in a pipe that lost its last reader is not lost for as long as the container, or
// its shim, may write to it.
func TestAPipeWithoutAReaderIsFoundByItsWriters(t *testing.T) {
	for _, of := range []string{"the process", "its parent"} {
		t.Run(of, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			var st unix.Stat_t
			if err := unix.Fstat(int(r.Fd()), &st); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("sleep", "1000")
			if of == "the process" {
				cmd.Stdout = w
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
			if _, err := w.WriteString("kept"); err != nil {
				t.Fatal(err)
			}
			_ = r.Close()
			if of == "the process" {
				_ = w.Close()
			} else if _, err := w.WriteString("x"); !errors.Is(err, syscall.EPIPE) {
				t.Fatalf("%v: the pipe has a reader", err)
			}
			p := Process{Pid: uint32(cmd.Process.Pid)}
			fd, err := OpenPipe(p, st.Ino)
			if err != nil {
				t.Fatal(err)
			}
			f := os.NewFile(uintptr(fd), "pipe")
			defer f.Close()
			b := make([]byte, 10)
			if n, err := f.Read(b); err != nil || string(b[:n]) != "kept" {
				t.Errorf("%q, %v", b[:n], err)
			}
			if fd, err := OpenPipe(p, st.Ino+1_000_000_000_000); !errors.Is(err, ErrGone) {
				t.Errorf("of a pipe that there is not: %d, %v", fd, err)
			}
		})
	}
}
