// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// Another user may have made a socket where berth makes one for streams. Whoever listens gets the URL and
// what is typed, so only root and the same user are trusted.
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
	conn := dialTrusted(t.Context(), socket)
	if conn == nil {
		t.Fatal("a socket of the same user is not trusted")
	}
	defer conn.Close()
	if uid, err := peer(conn.(*net.UnixConn)); err != nil || uid != os.Geteuid() {
		t.Errorf("user %d listens: %v", uid, err)
	}
	if dialTrusted(t.Context(), socket+"-none") != nil {
		t.Error("nobody listens")
	}
}
