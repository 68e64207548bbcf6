// SPDX-License-Identifier: Apache-2.0

package wholefile

import (
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

// What a process left that was killed is removed, and the file itself is not. Where nothing is left,
// nothing is wrong.
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
