// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/base/asynclog"
	"berth/internal/base/config"
)

// config check called settings valid with which serve did not start. A typo took /run to 0711.
func TestCheckRefusesWhateverServeRefuses(t *testing.T) {
	libexec := t.TempDir()
	for _, program := range []string{"pause", "containerd-shim-runc-v2", "runc"} {
		if err := os.WriteFile(filepath.Join(libexec, program), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	shared := filepath.Join(t.TempDir(), "shared")
	if err := os.MkdirAll(filepath.Join(shared, "theirs"), 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/var/lib", link); err != nil {
		t.Fatal(err)
	}
	valid := func() config.Config {
		c := config.Default()
		dir, err := os.MkdirTemp("", "b") // with a short path, for sockets
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		c.Root, c.State, c.Libexec = filepath.Join(dir, "root"), filepath.Join(dir, "state"), libexec
		return c
	}
	if err := Check(valid()); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		edit  func(*config.Config)
		says  string
		check bool // serve starts, without that handler
	}{
		{func(c *config.Config) { c.Containerd.Snapshotter = "zfs" }, "zfs", false},
		{func(c *config.Config) {
			c.Runtimes["k"] = config.Runtime{Type: "io.containerd.runc.v2", Snapshotter: "zfs"}
		}, "runtimes.k.snapshotter", false},
		{func(c *config.Config) { c.State = "/" + strings.Repeat("s", 80) }, "give a shorter one", false},
		{func(c *config.Config) { c.Libexec = shared }, "pause", false},
		{func(c *config.Config) {
			c.Runtimes["k"] = config.Runtime{Type: "io.containerd.runc.v2", BaseSpec: "/absent"}
		}, "base_spec", false},
		{func(c *config.Config) { c.Streams.CertFile, c.Streams.KeyFile = "/absent", "/absent" }, "/absent", false},
		{func(c *config.Config) { c.Runtimes["k"] = config.Runtime{Type: "io.containerd.kata.v2"} }, "containerd-shim-kata-v2 is not there", true},
		{func(c *config.Config) {
			c.Runtimes["k"] = config.Runtime{Type: "io.containerd.runc.v2", Binary: "/absent/crun"}
		}, "/absent/crun", true},
		{func(c *config.Config) { c.State = "/run" }, "state: /run is a directory of the host", false},
		{func(c *config.Config) { c.State = "/var/run/" }, "directory of the host", false},
		{func(c *config.Config) { c.Root = "/" }, "root: / is", false},
		{func(c *config.Config) { c.Root = "/var/lib" }, "directory of the host", false},
		{func(c *config.Config) { c.Root = link }, "/var/lib is a directory of the host", false},
		{func(c *config.Config) { c.Root = "/etc" }, "directory of the host", false},
		{func(c *config.Config) { c.Root = "/tmp" }, "directory of the host", false},
		{func(c *config.Config) { c.State = "/proc/self" }, "directory of the host", false},
		{func(c *config.Config) { c.Root = shared }, "holds theirs, which is not berth's", false},
		{func(c *config.Config) { c.State = shared }, "from 755 to 711", false},
	} {
		c := valid()
		tt.edit(&c)
		if err := Check(c); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("want %q: %v", tt.says, err)
		}
		if err := refused(c); (err != nil) == tt.check {
			t.Errorf("serve, where check says %q: %v", tt.says, err)
		}
		if tt.check {
			continue
		}
		log := asynclog.New(io.Discard, func(io.Writer) slog.Handler { return slog.DiscardHandler })
		if err := Serve(t.Context(), c, nil, func() { t.Errorf("it serves with %s", tt.says) }, log); err == nil {
			t.Errorf("serve starts, and check says %q", tt.says)
		}
	}
	if st, err := os.Stat(shared); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("the mode of another's directory was changed: %v %v", st.Mode(), err)
	}
}

// A disk of berth's own, a directory that systemd, a package or a socket unit has made, and that of
// an earlier berth are taken.
func TestADirectoryForBerthIsTaken(t *testing.T) {
	for _, entry := range []string{"", "lost+found", "berth.db"} {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if entry != "" {
			if err := os.Mkdir(filepath.Join(dir, entry), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := checkDir("root", dir, rootMode, "berth.db"); err != nil {
			t.Errorf("with %q: %v", entry, err)
		}
	}
}
