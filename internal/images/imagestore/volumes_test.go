// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/continuity/sysx"
	"github.com/containerd/errdefs"
)

// One directory of an image was copied for each link to it that the image calls a volume, and its
// size was counted each time from the beginning. PROPERTIES 38.
func TestVolumesOfAnImageAreBoundedTogether(t *testing.T) {
	root := t.TempDir()
	try(t, os.MkdirAll(filepath.Join(root, "data"), 0o700))
	try(t, os.WriteFile(filepath.Join(root, "data", "f"), nil, 0o600))
	try(t, os.Truncate(filepath.Join(root, "data", "f"), maxVolumeBytes/4))
	dirs := map[string]string{}
	for n := range 5 {
		name := fmt.Sprintf("link%d", n)
		try(t, os.Symlink("/data", filepath.Join(root, name)))
		dirs["/"+name] = t.TempDir()
	}
	if err := copyOut(t.Context(), root, dirs); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "together") {
		t.Errorf("five links to a quarter of the bound: %v", err)
	}
	for path, dir := range dirs {
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("%s was copied", path)
		}
	}
	delete(dirs, "/link0")
	try(t, copyOut(t.Context(), root, dirs))
	var st syscall.Stat_t
	try(t, syscall.Stat(filepath.Join(dirs["/link1"], "f"), &st))
	if st.Size != maxVolumeBytes/4 || st.Blocks > 1<<10 {
		t.Errorf("a file of %d zeros has %d bytes and %d blocks", maxVolumeBytes/4, st.Size, st.Blocks)
	}
}

// A volume is copied for each container: its size and its number of files are the image's to
// choose.
func TestAVolumeOfAnImageIsBounded(t *testing.T) {
	dir := t.TempDir()
	try(t, os.WriteFile(filepath.Join(dir, "f"), []byte("1234"), 0o600))
	for n := range 3 {
		try(t, os.Symlink("x", filepath.Join(dir, fmt.Sprint(n))))
	}
	for what, budget := range map[string]volumeBudget{
		"":      {files: 5, bytes: 4}, // with the directory itself
		"files": {files: 4, bytes: 4},
		"bytes": {files: 5, bytes: 3},
	} {
		err := budget.charge(t.Context(), dir)
		if what == "" && err != nil || what != "" && (!errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), what)) {
			t.Errorf("%+v: %v", budget, err)
		}
	}
}

// A copy that nobody waits for any more went on to its end.
func TestTheCopyOfAVolumeEndsWithItsCall(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	try(t, os.WriteFile(filepath.Join(src, "f"), nil, 0o600))
	try(t, os.Truncate(filepath.Join(src, "f"), maxVolumeBytes))
	ctx, cancel := context.WithCancel(t.Context())
	in, err := os.Open(filepath.Join(src, "f"))
	try(t, err)
	defer in.Close()
	out, err := os.Create(filepath.Join(dst, "f"))
	try(t, err)
	defer out.Close()
	if err := copySparse(ctx, out, readFunc(func(p []byte) (int, error) {
		cancel()
		return in.Read(p)
	})); !errors.Is(err, context.Canceled) {
		t.Errorf("in a file: %v", err)
	}
	if err := copyTree(ctx, src, dst); !errors.Is(err, context.Canceled) {
		t.Errorf("between files: %v", err)
	}
}

type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// What is copied has the content, the links, the owners, the modes, the attributes and the times
// that it has in the image.
func TestAVolumeIsCopiedAsItIs(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	at := time.Unix(1e9, 5)
	try(t, os.MkdirAll(filepath.Join(src, "dir", "sub"), 0o700))
	try(t, os.WriteFile(filepath.Join(src, "dir", "f"), []byte("content"), 0o600))
	try(t, sysx.LSetxattr(filepath.Join(src, "dir", "f"), "user.berth", []byte("attribute"), 0))
	try(t, os.Link(filepath.Join(src, "dir", "f"), filepath.Join(src, "dir", "sub", "same")))
	try(t, os.Symlink("/nowhere", filepath.Join(src, "link")))
	try(t, syscall.Mkfifo(filepath.Join(src, "fifo"), 0o600))
	for _, name := range []string{"link", "fifo", "dir/f", "dir/sub", "dir", "."} {
		path := filepath.Join(src, name)
		try(t, os.Lchown(path, 7, 8))
		if name != "link" {
			try(t, syscall.Chmod(path, 0o4751))
			try(t, os.Chtimes(path, at, at))
		}
	}
	try(t, copyTree(t.Context(), src, dst))
	for _, name := range []string{"link", "fifo", "dir/f", "dir/sub", "dir/sub/same", "dir", "."} {
		var want, got syscall.Stat_t
		try(t, errors.Join(syscall.Lstat(filepath.Join(src, name), &want), syscall.Lstat(filepath.Join(dst, name), &got)))
		if got.Mode != want.Mode || got.Uid != 7 || got.Gid != 8 || name != "link" && got.Mtim != want.Mtim || got.Nlink != want.Nlink {
			t.Errorf("%s: mode %o, owner %d:%d, changed at %v, %d links; want mode %o, 7:8, %v, %d", name, got.Mode, got.Uid, got.Gid, got.Mtim, got.Nlink, want.Mode, want.Mtim, want.Nlink)
		}
	}
	b, err := os.ReadFile(filepath.Join(dst, "dir", "sub", "same"))
	attribute, aerr := sysx.LGetxattr(filepath.Join(dst, "dir", "f"), "user.berth")
	target, terr := os.Readlink(filepath.Join(dst, "link"))
	if err := errors.Join(err, aerr, terr); err != nil || string(b) != "content" || string(attribute) != "attribute" || target != "/nowhere" {
		t.Errorf("%q %q %q %v", b, attribute, target, err)
	}
}
