// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Another user made a socket where berth makes one for streams. Whoever listens gets the URL and what is
// typed, so nobody is connected with it.
func TestASocketOfAnotherUserGetsNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can listen as another user")
	}
	dir, err := os.MkdirTemp("", "berth-peer") // nobody else gets into that of the test
	if err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		err = os.Chmod(dir, 0o777) //nolint:gosec // for the other user
	}
	if err != nil {
		t.Fatal(err)
	}
	listen := func(path string) {
		lis, err := net.Listen("unix", path)
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = lis.Close() })
	}
	own, other := filepath.Join(dir, "own"), filepath.Join(dir, "other")
	listen(own)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // it ends with this goroutine
		uid := ^uintptr(0)     // as it is
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uid, 65534, uid); errno != 0 {
			t.Error(errno)
			return
		}
		listen(other)
	}()
	<-done
	if conn := dialTrusted(t.Context(), own); conn == nil {
		t.Error("a socket of the same user is not trusted")
	} else {
		_ = conn.Close()
	}
	if conn := dialTrusted(t.Context(), other); conn != nil {
		t.Error("a socket of another user is trusted")
		_ = conn.Close()
	}
	if conn := dialTrusted(t.Context(), filepath.Join(dir, "none")); conn != nil {
		t.Error("nobody listens")
	}
}
