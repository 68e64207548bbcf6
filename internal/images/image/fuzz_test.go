// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"testing"
)

// What an archive of images lists is read within a bound, and each name in it is a reference.
func FuzzListed(f *testing.F) {
	f.Add([]byte(`[{"RepoTags":["a:1","docker.io/library/b@sha256:00"]}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var list []struct{ RepoTags []string }
		if decode(bytes.NewReader(b), &list) != nil {
			return
		}
		for _, i := range list {
			for _, name := range normalized(i.RepoTags) {
				if again, err := Normalize(name); err != nil || again != name {
					t.Errorf("%q is %q the second time: %v", name, again, err)
				}
			}
		}
	})
}
