// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// An index is read as it was written, or is an error: nothing in it makes the check panic, or use more
// memory than the index has bytes. With sum its checksum is right whatever is in it.
func FuzzIndex(f *testing.F) {
	layer := f.TempDir()
	if err := os.WriteFile(filepath.Join(layer, "a"), []byte("text"), 0o600); err != nil {
		f.Fatal(err)
	}
	path := filepath.Join(f.TempDir(), "index")
	if err := WriteIndex(layer, path); err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole, false)
	f.Add(whole[:len(whole)-8], true)
	f.Add([]byte(indexHeader+"\xff\xff\xff\xff"), true)
	f.Fuzz(func(t *testing.T, b []byte, sum bool) {
		if sum {
			b = binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
		}
		path := filepath.Join(t.TempDir(), "index")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, contents := range []bool{false, true} {
			if err := CheckIndex(layer, path, contents); err == nil && !sum && string(b) != string(whole) {
				t.Errorf("an index is whole that was not written: %v", errors.New(string(b)))
			}
		}
	})
}
