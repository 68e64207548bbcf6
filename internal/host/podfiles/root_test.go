// SPDX-License-Identifier: Apache-2.0

package podfiles

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// These tests mount, and so need root.

func make1(t *testing.T, s Sandbox) *Files {
	t.Helper()
	f := New(t.TempDir(), t.TempDir())
	if err := f.MakeSandbox(s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Remove(s.ID); err != nil {
			t.Error(err)
		}
	})
	return f
}

func TestWhatAPodSharesIsThereAndBounded(t *testing.T) {
	f := make1(t, Sandbox{ID: "p1", Hostname: []byte("name"), ResolvConf: []byte("conf"), ShmSize: 1 << 20})
	if err := errors.Join(f.SetHosts("p1", []byte("hosts of an attempt before")), f.SetHosts("p1", []byte("hosts"))); err != nil {
		t.Fatal(err)
	}
	shared := f.Shared("p1", false)
	for path, want := range map[string]string{"/etc/hosts": "hosts", "/etc/hostname": "name", "/etc/resolv.conf": "conf"} {
		if got, err := os.ReadFile(shared[path]); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	for _, tt := range []struct {
		path string
		size int64
	}{{shared["/etc/hosts"], etcSize}, {shared["/dev/shm"], 1 << 20}} {
		var st unix.Statfs_t
		if err := unix.Statfs(tt.path, &st); err != nil {
			t.Fatal(err)
		}
		if size := int64(st.Blocks) * st.Bsize; st.Type != unix.TMPFS_MAGIC || size != tt.size {
			t.Errorf("%s: type %x, %d bytes, want a tmpfs of %d", tt.path, st.Type, size, tt.size)
		}
		if flags := int64(unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC); st.Flags&flags != flags {
			t.Errorf("%s: flags %x, want nosuid, nodev and noexec", tt.path, st.Flags)
		}
	}
	if err := os.WriteFile(shared["/etc/hosts"], make([]byte, etcSize+1), 0o600); err == nil {
		t.Error("a pod can write more into its hosts file than the bound")
	}
	if st, err := os.Stat(shared["/dev/shm"]); err != nil || st.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("/dev/shm: %v %v", st.Mode(), err)
	}
}

func TestMakingAgainDoesNotPileUpMounts(t *testing.T) {
	s := Sandbox{ID: "p1"}
	f := make1(t, s)
	for range 3 {
		if err := f.MakeSandbox(s); err != nil {
			t.Fatal(err)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(mounts), f.state); n != 2 {
		t.Errorf("%d mounts, want 2", n)
	}
}

func TestRemoveTakesEverythingAndCanBeRepeated(t *testing.T) {
	f := make1(t, Sandbox{ID: "p1", HostIPC: true})
	if f.Shared("p1", true)["/dev/shm"] != "/dev/shm" {
		t.Error("a pod with the host's IPC does not get the host's /dev/shm")
	}
	dir, err := f.MakeVolume("c1", 0)
	if err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "kept")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(f.IO("c1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if ids, err := f.IDs(); err != nil || strings.Join(ids, " ") != "c1 p1" {
		t.Errorf("listed %v, %v", ids, err)
	}
	for range 2 {
		for _, err := range []error{f.Remove("p1"), f.Remove("c1"), os.RemoveAll(f.IO("c1"))} {
			if err != nil {
				t.Error(err)
			}
		}
	}
	if ids, err := f.IDs(); err != nil || len(ids) != 0 {
		t.Errorf("left %v, %v", ids, err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("a link in a volume was followed: %v", err)
	}
}
