// SPDX-License-Identifier: Apache-2.0

package access

import (
	"bytes"
	"testing"
)

// A file of accesses that has the hash that was kept has every line up to it: a chain that is changed
// is Broken, or has another head.
func FuzzChain(f *testing.F) {
	first := []byte(`{"number":1,"before":"","at":"2026-01-02T15:04:05Z","what":"started"}`)
	second := []byte(`{"number":2,"before":"` + hash(first) + `","at":"2026-01-02T15:04:06Z","what":"began"}`)
	whole := bytes.Join([][]byte{first, second, nil}, []byte("\n"))
	f.Add(whole)
	f.Add(whole[:len(whole)-2])
	f.Fuzz(func(t *testing.T, b []byte) {
		v := NewVerifier(hash(second))
		if v.Add(bytes.NewReader(b)) != nil {
			return
		}
		if r, err := v.Result(); err == nil && !bytes.Contains(b, second) {
			t.Errorf("%q has the hash of a line that is not in it: %+v", b, r)
		}
	})
}
