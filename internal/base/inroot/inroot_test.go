// SPDX-License-Identifier: Apache-2.0

package inroot

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// filled is a directory as an image may have filled it. Beside it is a file that it must not lead
// to.
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
		if b, err := ReadGiven(filepath.Join(dir.Name(), name), 1<<20); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %q %v", name, b, err)
		}
	}
	if b, err := ReadGiven(filepath.Join(dir.Name(), "fifo", "none"), 1); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("%q %v", b, err)
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

// Whoever may write below /var/log/pods, as a collector of logs may, had berth read any file of the
// host by a link in the place of a directory, and open any device. What the directory of a pod lies
// in may lead through links.
func TestALogIsFoundBehindNoLinkOfAPod(t *testing.T) {
	base := t.TempDir()
	pod := filepath.Join(base, "pods", "pod")
	try(t, os.MkdirAll(filepath.Join(pod, "app"), 0o755))
	try(t, os.WriteFile(filepath.Join(pod, "app/0.log"), []byte("inside"), 0o644))
	try(t, os.Symlink("pods", filepath.Join(base, "link")))
	try(t, os.Symlink(pod, filepath.Join(base, "pods/other")))
	try(t, os.Symlink("app", filepath.Join(pod, "linked")))
	try(t, os.Symlink("0.log", filepath.Join(pod, "app/1.log")))
	try(t, unix.Mkfifo(filepath.Join(pod, "app/fifo.log"), 0o644))
	for _, dir := range []string{pod, filepath.Join(base, "link/pod/")} {
		f, err := OpenLog(dir, "app/0.log")
		try(t, err)
		if b, err := io.ReadAll(f); string(b) != "inside" || err != nil {
			t.Errorf("below %s: got %q %v", dir, b, err)
		}
		_ = f.Close()
	}
	for _, tt := range []struct {
		dir, path string
		want      error
	}{
		{filepath.Join(base, "pods/other"), "app/0.log", unix.ELOOP},
		{pod, "linked/0.log", unix.ELOOP},
		{pod, "app/1.log", unix.ELOOP},
		{pod, "app/fifo.log", fs.ErrNotExist},
		{pod, "app", fs.ErrNotExist},
		{pod, "../pod/app/0.log", fs.ErrInvalid},
		{"pods/pod", "app/0.log", fs.ErrInvalid},
	} {
		if f, err := OpenLog(tt.dir, tt.path); !errors.Is(err, tt.want) {
			t.Errorf("%s below %s: got %v %v, want %v", tt.path, tt.dir, f, err, tt.want)
		}
	}
}
