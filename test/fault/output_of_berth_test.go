// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/node"
)

// fullPipe returns both ends of a pipe that takes not one byte more. Writing to it waits for a
// reader.
func fullPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	for size := 4096; size > 0; size /= 2 {
		for {
			if _, err := unix.Write(fds[1], make([]byte, size)); errors.Is(err, unix.EAGAIN) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, fd := range fds {
		if err := unix.SetNonblock(fd, false); err != nil {
			t.Fatal(err)
		}
	}
	r, w = os.NewFile(uintptr(fds[0]), "full"), os.NewFile(uintptr(fds[1]), "full")
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return r, w
}

// PROPERTIES 19: berth's standard error is a pipe that nobody reads. Exits were unseen for as long
// as that lasted, because the witness logged them inside its loop. Nor may it keep berth from
// becoming ready, or from ending.
func TestExitsAreSettledThoughStandardErrorIsNotRead(t *testing.T) {
	t.Parallel()
	_, w := fullPipe(t)
	metrics := freePort(t)
	n := node.Start(t, node.Options{Stderr: w, Args: []string{"--log-level", "debug", "--metrics", metrics}})
	for code := range 3 {
		_, id := n.Sh(fmt.Sprint("exit ", 40+code))
		node.ExpectExit(t, n.Ended(id), int32(40+code), "Error")
	}
	// Far more calls than records that the log keeps: what is dropped is counted.
	n.Until("records are dropped and counted", func() bool {
		for range 500 {
			if _, err := n.ListPodSandbox(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		return metric(t, metrics, "berth_log_dropped_total") > 0
	})
	_, id := n.Sh("exit 50")
	node.ExpectExit(t, n.Ended(id), 50, "Error")
}

// A reader of the log that goes away ended berth with SIGPIPE.
func TestBerthOutlivesTheReaderOfItsLog(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	n := node.Start(t, node.Options{Stderr: w, Args: []string{"--log-level", "debug"}})
	_, id := n.Sh("exit 42")
	node.ExpectExit(t, n.Ended(id), 42, "Error")
}
