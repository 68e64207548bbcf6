// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"testing"
)

// Settings that can be read are written in such a way that they are the same when they are read again.
func FuzzSettings(f *testing.F) {
	f.Add([]byte("[runtimes.runc]\ntype = 'io.containerd.runc.v2'\nhost_process = true\n"))
	f.Add([]byte("[image]\npinned = ['a']\n[log]\nlevel = 'debug'\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Parse(b)
		if err != nil || len(c.Image.Auth) > 0 { // secrets are not written
			return
		}
		var first, second bytes.Buffer
		if err := c.Write(&first); err != nil {
			t.Fatal(err)
		}
		if c, err = Parse(first.Bytes()); err != nil {
			t.Fatalf("what is written of %q cannot be read: %v", b, err)
		}
		if err := c.Write(&second); err != nil {
			t.Fatal(err)
		}
		if first.String() != second.String() {
			t.Errorf("%q is written as\n%s and then as\n%s", b, first.String(), second.String())
		}
	})
}
