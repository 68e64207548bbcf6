// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"os"
	"path/filepath"
	"testing"

	"berth/internal/base/frame"
)

// A segment of the history that is damaged is read round the damage: a record has the checksum that it
// was written with.
func FuzzSegment(f *testing.F) {
	form := frame.Form{Magic: magic}
	whole := form.Append(nil, 1, []byte(`{"format":1}`))
	whole = form.Append(whole, 1, []byte(`{"entry":{}}`))
	f.Add(whole)
	f.Add(whole[:len(whole)-3])
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "segment")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s := &segment{path: path, first: 1}
		read := 0
		err := s.scan(func(_ uint64, payload []byte) { read += frame.Header + len(payload) })
		if err == nil && !s.whole || read > len(b) {
			t.Errorf("%d bytes are read of %d: %v", read, len(b), err)
		}
	})
}
