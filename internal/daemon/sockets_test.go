// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/base/asynclog"
	"berth/internal/host/fdstore"
)

// PROPERTIES 53: the file of the CRI socket was removed, and no client came any more until berth
// was restarted.
func TestASocketThatIsRemovedIsMadeAgain(t *testing.T) {
	log := asynclog.New(io.Discard, func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) })
	store, err := fdstore.Open(log.Logger)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "made", "berth.sock")
	lis, err := openCRI(t, passed{}, path)
	if err != nil {
		t.Fatal(err)
	}
	all := &sockets{log: log, kept: store}
	s := &socket{of: "a socket of CRI", lis: lis, path: path, kept: keptListener}
	opened := []net.Listener{lis}
	defer func() {
		for _, lis := range opened {
			_ = lis.Close()
		}
	}()
	for what, harm := range map[string]func() error{
		"its file was removed":      func() error { return os.Remove(path) },
		"its directory was removed": func() error { return os.RemoveAll(filepath.Dir(path)) },
		"its file was moved away":   func() error { return os.Rename(path, path+".away") },
	} {
		if all.renew(s) {
			t.Errorf("before %s it is made again", what)
		}
		if err := harm(); err != nil {
			t.Fatal(err)
		}
		if !all.renew(s) {
			t.Fatalf("%s, and it is not made again", what)
		}
		opened = append(opened, s.lis)
		connect(t, path, s.lis)
	}
	// A process that serves there now is left alone, and berth comes back when it has gone.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := newListener(path)
	if err != nil {
		t.Fatal(err)
	}
	if all.renew(s) {
		t.Error("the socket of another process was replaced")
	}
	connect(t, path, other)
	_ = other.Close()
	if !all.renew(s) {
		t.Fatal("it is not made again")
	}
	opened = append(opened, s.lis)
	connect(t, path, s.lis)
}
