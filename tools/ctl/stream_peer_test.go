// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Another user may have made a socket where berth makes one for streams. Whoever listens gets the
// URL and what is typed, so only root and the same user are trusted.
func TestASocketOfAnotherUserGetsNothing(t *testing.T) {
	for _, tc := range []struct {
		listener, user int
		want           bool
	}{
		{0, 0, true},
		{0, 1000, true},
		{1000, 1000, true},
		{1000, 0, false},
		{1001, 1000, false},
	} {
		if got := mayListen(tc.listener, tc.user); got != tc.want {
			t.Errorf("user %d trusts user %d: %t", tc.user, tc.listener, got)
		}
	}
	socket := filepath.Join(t.TempDir(), "s")
	lis, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	conn, err := dialTrusted(t.Context(), socket, peer)
	if err != nil {
		t.Fatalf("a socket of the same user is not trusted: %v", err)
	}
	defer conn.Close()
	if uid, err := peer(conn.(*net.UnixConn)); err != nil || uid != os.Geteuid() {
		t.Errorf("user %d listens: %v", uid, err)
	}
	if conn, err := dialTrusted(t.Context(), socket+"-none", peer); conn != nil || err != nil {
		t.Errorf("nobody listens: %v", err)
	}
	other := func(*net.UnixConn) (int, error) { return os.Geteuid() + 1, nil }
	if conn, err := dialTrusted(t.Context(), socket, other); conn != nil || err == nil {
		t.Error("a socket of another user is trusted")
	}
	unknown := func(*net.UnixConn) (int, error) { return 0, unix.ENOPROTOOPT }
	if conn, err := dialTrusted(t.Context(), socket, unknown); conn != nil || !errors.Is(err, unix.ENOPROTOOPT) {
		t.Errorf("a socket is trusted on which nobody knows who listens: %v", err)
	}
}

// A command that leaves a socket of another user alone, and does not reach the address either, says
// both.
func TestACommandSaysThatItLeavesASocketAlone(t *testing.T) {
	f := services()
	at := serveFake(t, f)
	lis, err := net.Listen("unix", strings.TrimPrefix(at, "unix://")+streamsSuffix)
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	f.execURL = "http://127.0.0.1:1/exec/a" // where nobody listens
	svc := &service{endpoint: at, listener: func(*net.UnixConn) (int, error) { return os.Geteuid() + 1, nil }}
	_, err = svc.connect(t.Context(), f.execURL)
	says(t, "another user's socket", fmt.Sprint(err), "127.0.0.1:1", "refused", streamsSuffix, fmt.Sprintf("user %d", os.Geteuid()+1))
}
