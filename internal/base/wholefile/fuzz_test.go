// SPDX-License-Identifier: Apache-2.0

package wholefile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A file is read with the checksum that fits, or is ErrDamaged.
func FuzzSealed(f *testing.F) {
	f.Add([]byte(`{"a":"b"}`), []byte(Sum([]byte(`{"a":"b"}`))))
	f.Add([]byte(`{"a":"b"}`), []byte(Sum(nil)))
	f.Fuzz(func(t *testing.T, text, sum []byte) {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, []byte(string(text)+"\n"+string(sum)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var v any
		err := ReadSealed(path, &v)
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Error(err)
		}
		if err == nil && len(sum) == 64 && !bytes.Contains(append(text, sum...), []byte("\n")) && string(sum) != Sum(text) {
			t.Errorf("%q is read with the checksum %q", text, sum)
		}
	})
}
