// SPDX-License-Identifier: Apache-2.0

package wholefile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// What a process left that was killed is written over, and a link that somebody put there is not
// followed.
func TestWhatIsLeftIsWrittenOver(t *testing.T) {
	dir := t.TempDir()
	path, elsewhere := filepath.Join(dir, "file"), filepath.Join(dir, "elsewhere")
	for what, leave := range map[string]func() error{
		"nothing":      func() error { return nil },
		"a longer one": func() error { return os.WriteFile(path+Fresh, []byte("much more than this"), 0o400) },
		"a link":       func() error { return os.Symlink(elsewhere, path+Fresh) },
	} {
		if err := leave(); err != nil {
			t.Fatal(err)
		}
		if err := Write(path, []byte(what), 0o640, -1, -1); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		b, err := os.ReadFile(path)
		if err != nil || string(b) != what {
			t.Errorf("%s: %q, %v", what, b, err)
		}
		if st, err := os.Stat(path); err != nil || st.Mode() != 0o640 {
			t.Errorf("%s: %v, %v", what, st, err)
		}
		if sum, err := SumOf(path); err != nil || sum != Sum([]byte(what)) {
			t.Errorf("%s: the sum is %s, %v", what, sum, err)
		}
		for _, p := range []string{path + Fresh, elsewhere} {
			if _, err := os.Lstat(p); !os.IsNotExist(err) {
				t.Errorf("%s: %s is left", what, p)
			}
		}
	}
	if sum, err := SumOf(elsewhere); sum != "" || err != nil {
		t.Errorf("a file that is not there has the sum %q, %v", sum, err)
	}
}

// What a process left that was killed is removed, and the file itself is not. Where nothing is
// left, nothing is wrong.
func TestWhatIsLeftIsRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, p := range []string{path, path + Fresh} {
		if err := os.WriteFile(p, []byte("a"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{path, path, filepath.Join(path, "below a file"), filepath.Join(path+"s", "nowhere")} {
		if err := RemoveUnfinished(p); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
	if all, err := filepath.Glob(path + "*"); err != nil || len(all) != 1 || all[0] != path {
		t.Errorf("there are %v, %v", all, err)
	}
}

// PROPERTIES 63: each bit of a small file is flipped, and the file is cut at each place. It is
// damaged, or as it was written. A file of an earlier berth has no checksum.
func TestADamagedFileIsNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	said := map[string]bool{"doubted": true, "clean": false}
	if err := WriteSealed(path, said); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	expect := func(where string, b []byte) {
		t.Helper()
		got := map[string]bool{}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		err := ReadSealed(path, &got)
		if err == nil && !maps.Equal(got, said) || err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v, %v", where, got, err)
		}
	}
	for bit := range 8 * len(whole) {
		b := bytes.Clone(whole)
		b[bit/8] ^= 1 << (bit % 8)
		expect(fmt.Sprintf("bit %d", bit), b)
		expect(fmt.Sprintf("cut at %d", bit/8), whole[:bit/8])
	}
	for _, text := range []string{string(whole), `{"clean":false,"doubted":true}`, "{\n\"clean\":false,\n\"doubted\":true}\n"} {
		got := map[string]bool{}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := ReadSealed(path, &got); err != nil || !maps.Equal(got, said) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	if err := ReadSealed(path+"s", &said); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}
