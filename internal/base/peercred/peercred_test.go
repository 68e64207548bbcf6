// SPDX-License-Identifier: Apache-2.0

package peercred_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/base/peercred"
)

func TestTheOtherEndOfASocketIsKnown(t *testing.T) {
	lis, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	conn, err := net.Dial("unix", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	cred, err := peercred.Of(conn.(*net.UnixConn))
	if err != nil || int(cred.Pid) != os.Getpid() || int(cred.Uid) != os.Geteuid() {
		t.Errorf("%+v %v", cred, err)
	}
	_ = conn.Close()
	if _, err := peercred.Of(conn.(*net.UnixConn)); err == nil {
		t.Error("a connection that is closed has another end")
	}
}
