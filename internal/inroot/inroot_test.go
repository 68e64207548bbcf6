// SPDX-License-Identifier: Apache-2.0

package inroot

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// filled is a directory as an image may have filled it. Beside it is a file that it must not lead to.
func filled(t *testing.T) *os.File {
	t.Helper()
	base := t.TempDir()
	dir := filepath.Join(base, "dir")
	try(t, os.MkdirAll(filepath.Join(dir, "etc"), 0o755))
	try(t, os.WriteFile(filepath.Join(base, "secret"), []byte("outside"), 0o644))
	try(t, os.WriteFile(filepath.Join(dir, "etc/file"), []byte("inside"), 0o644))
	for name, to := range map[string]string{
		"absolute": "/etc/file",
		"relative": "etc/file",
		"above":    "../../../etc/file",
		"out":      "../secret",
		"whole":    filepath.Join(base, "secret"),
		"loop":     "loop",
		"magic":    "/proc/self/root",
	} {
		try(t, os.Symlink(to, filepath.Join(dir, name)))
	}
	try(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	f, err := os.Open(dir)
	try(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestAFileIsFoundBelowTheDirectoryAlone(t *testing.T) {
	dir := filled(t)
	for _, name := range []string{"etc/file", "/etc/file", "etc/../etc/file", "../etc/file", "absolute", "relative", "above"} {
		f, err := OpenFile(int(dir.Fd()), name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if b, err := io.ReadAll(f); string(b) != "inside" || err != nil {
			t.Errorf("%s has %q: %v", name, b, err)
		}
		_ = f.Close()
	}
	for _, name := range []string{"out", "whole", "magic", "../secret", "none", "etc/file/below"} {
		if f, err := OpenFile(int(dir.Fd()), name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v %v", name, f, err)
		}
	}
	if _, err := OpenFile(int(dir.Fd()), "loop"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("loop: %v", err)
	}
}

// A FIFO that nobody writes to would hold up whoever opens it.
func TestWhatIsNoFileIsNotOpened(t *testing.T) {
	dir := filled(t)
	for _, name := range []string{"fifo", "etc", "."} {
		if f, err := OpenFile(int(dir.Fd()), name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v %v", name, f, err)
		}
	}
}

func TestADirectoryIsFoundAsOne(t *testing.T) {
	dir := filled(t)
	fd, err := Find(int(dir.Fd()), "/etc", unix.O_DIRECTORY)
	try(t, err)
	_ = unix.Close(fd)
	if _, err := Find(int(dir.Fd()), "etc/file", unix.O_DIRECTORY); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a file: %v", err)
	}
}
