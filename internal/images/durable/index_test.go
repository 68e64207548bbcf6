// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// layer makes a layer and its index.
func layer(t testing.TB) (dir, index string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "fs")
	index = filepath.Join(filepath.Dir(dir), "index")
	err := errors.Join(
		os.MkdirAll(dir+"/etc/deep", 0o755),
		os.WriteFile(dir+"/etc/file", []byte("contents"), 0o640),
		os.WriteFile(dir+"/etc/deep/large", bytes.Repeat([]byte("x"), 3*chunk+5), 0o600),
		os.WriteFile(dir+"/empty", nil, 0o600),
		os.Symlink("etc/file", dir+"/link"),
		os.Link(dir+"/etc/file", dir+"/second"),
		unix.Mkfifo(dir+"/fifo", 0o600),
		WriteIndex(dir, index),
	)
	if err != nil {
		t.Fatal(err)
	}
	return dir, index
}

func TestALayerIsAsItsIndexSays(t *testing.T) {
	dir, index := layer(t)
	if err := CheckIndex(dir, index, true); err != nil {
		t.Error(err)
	}
	if err := CheckIndex(dir, index, false); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(index + ".*"); left != nil {
		t.Errorf("%s is left", left)
	}
}

// What a power cut can take from a layer is found, all but other contents of the same size also
// without reading the files.
func TestWhatALayerHasLostIsFound(t *testing.T) {
	same := func(path string, f func() error) error { // the time of the directory stays
		st, err := os.Stat(filepath.Dir(path))
		if err != nil {
			return err
		}
		return errors.Join(f(), os.Chtimes(filepath.Dir(path), time.Time{}, st.ModTime()))
	}
	for name, lose := range map[string]func(dir string) error{
		"a file is empty":        func(dir string) error { return os.Truncate(dir+"/etc/file", 0) },
		"a file is missing":      func(dir string) error { return same(dir+"/empty", func() error { return os.Remove(dir + "/empty") }) },
		"a directory is missing": func(dir string) error { return os.RemoveAll(dir + "/etc/deep") },
		"the layer is missing":   os.RemoveAll,
		"a mode is another":      func(dir string) error { return os.Chmod(dir+"/etc/deep", 0o700) },
		"a file is a directory": func(dir string) error {
			return errors.Join(os.Remove(dir+"/empty"), os.Mkdir(dir+"/empty", 0o600))
		},
		"a link leads elsewhere": func(dir string) error {
			return errors.Join(os.Remove(dir+"/link"), os.Symlink("etc/none", dir+"/link"))
		},
		"a time is another": func(dir string) error { return os.Chtimes(dir+"/empty", time.Time{}, time.Unix(1, 0)) },
		"contents are zeros": func(dir string) error {
			path := dir + "/etc/deep/large"
			st, err := os.Stat(path)
			if err != nil {
				return err
			}
			return errors.Join(os.Truncate(path, 0), os.Truncate(path, st.Size()), os.Chtimes(path, time.Time{}, st.ModTime()))
		},
		"a name is too many": func(dir string) error {
			return same(dir+"/etc/more", func() error { return os.WriteFile(dir+"/etc/more", nil, 0o600) })
		},
	} {
		dir, index := layer(t)
		if err := lose(dir); err != nil {
			t.Fatal(err)
		}
		if err := CheckIndex(dir, index, true); !errors.Is(err, ErrWrong) {
			t.Errorf("%s: %v", name, err)
		}
		err := CheckIndex(dir, index, false)
		if found := errors.Is(err, ErrWrong); found == (strings.Contains(name, "contents") || strings.Contains(name, "many")) {
			t.Errorf("%s, looked at without reading: %v", name, err)
		}
	}
}

// An index that a power cut has shortened or emptied, or in which a byte is another one, says
// nothing: what it says of the layer is not taken for an answer.
func TestAnIndexThatIsNotWholeSaysNothing(t *testing.T) {
	dir, index := layer(t)
	whole, err := os.ReadFile(index)
	if err != nil {
		t.Fatal(err)
	}
	say := func(what string, text []byte) {
		t.Helper()
		if err := os.WriteFile(index, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := CheckIndex(dir, index, true); !errors.Is(err, ErrNoIndex) || errors.Is(err, ErrWrong) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for n := range whole {
		say(fmt.Sprintf("cut off after %d bytes", n), whole[:n])
	}
	for n := range whole {
		other := bytes.Clone(whole)
		other[n] ^= 1
		say(fmt.Sprintf("another byte at %d", n), other)
	}
	say("zeros", make([]byte, len(whole)))
	if err := os.Remove(index); err != nil {
		t.Fatal(err)
	}
	if err := CheckIndex(dir, index, true); !errors.Is(err, ErrNoIndex) {
		t.Errorf("none: %v", err)
	}
}

// What cannot be read is not an answer, neither that the layer is wrong nor that it has no index.
func TestAnIndexThatCannotBeReadIsNoAnswer(t *testing.T) {
	dir, _ := layer(t)
	err := CheckIndex(dir, dir, true) // reading a directory is an error
	if err == nil || errors.Is(err, ErrWrong) || errors.Is(err, ErrNoIndex) {
		t.Errorf("%v", err)
	}
}

func TestALayerIsSynced(t *testing.T) {
	dir, index := layer(t)
	if err := SyncLayer(dir, index); err != nil {
		t.Error(err)
	}
}

// BenchmarkWriteIndex describes a layer of 640 files of 64 KiB, which is in memory.
func BenchmarkWriteIndex(b *testing.B) {
	dir := b.TempDir()
	for n := range 640 {
		if err := os.WriteFile(fmt.Sprintf("%s/%d", dir, n), make([]byte, 64<<10), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	index := filepath.Join(b.TempDir(), "index")
	for b.Loop() {
		if err := WriteIndex(dir, index); err != nil {
			b.Fatal(err)
		}
	}
}
