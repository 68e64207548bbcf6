// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Whatever is in a log, reading it ends, and prints no more than it has.
func FuzzLog(f *testing.F) {
	f.Add([]byte("2026-01-02T15:04:05.000000000Z stdout F hello\n"), 1, false)
	f.Add([]byte("2026-01-02T15:04:05.000000000Z stderr P half \n2026-01-02T15:04:05.000000000Z stderr F line\n"), 1, true)
	f.Add(make([]byte, 100), -1, false)
	f.Fuzz(func(t *testing.T, b []byte, tail int, since bool) {
		path := filepath.Join(t.TempDir(), "0.log")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		r := &logReader{path: path, out: &out, err: &out}
		if since {
			r.since = time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
		}
		_ = r.read(context.Background(), tail%1000, false, func() (bool, error) { return false, nil })
		if out.Len() > len(b) {
			t.Errorf("%d bytes are printed of %d", out.Len(), len(b))
		}
	})
}

// Whatever archive a container sends, `berth cp` writes nothing beside its target.
func FuzzUnpack(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Name: "a/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "a/link", Typeflag: tar.TypeSymlink, Linkname: "../.."},
		{Name: "a/link/beside", Typeflag: tar.TypeReg, Mode: 0o644},
		{Name: "a/file", Typeflag: tar.TypeReg, Mode: 0o644},
	} {
		if err := w.WriteHeader(&h); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(b.Bytes(), "a")
	f.Add(b.Bytes(), "/")
	f.Fuzz(func(t *testing.T, b []byte, name string) {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "target"), 0o700); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(filepath.Join(dir, "target"))
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		_ = unpack(root, bytes.NewReader(b), name, "b")
		if beside, err := os.ReadDir(dir); err != nil || len(beside) != 1 {
			t.Errorf("beside the target there are %v, %v", beside, err)
		}
	})
}
