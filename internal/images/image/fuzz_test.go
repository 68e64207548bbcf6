// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"github.com/containerd/errdefs"
	"os"
	"path/filepath"
	"strings"
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

// A manifest of a seccomp profile names one layer within the bound, or is ErrInvalidArgument, and
// an archive is looked into without an end or a panic.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"artifactType":"` + SeccompProfile + `","config":{"mediaType":"application/vnd.oci.empty.v1+json"},"layers":[{"size":1,"digest":"sha256:` + strings.Repeat("0", 64) + `"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p := Profiles{cfg: ProfileConfig{MaxBytes: 1 << 20}}
		l, err := p.layerOf(b)
		if err != nil != errdefs.IsInvalidArgument(err) || err == nil && (l.Size < 0 || l.Size > 1<<20 || l.Digest.Validate() != nil) {
			t.Errorf("%+v, %v", l, err)
		}
		path := filepath.Join(t.TempDir(), "archive")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, name := range peek(path) {
			if _, err := Normalize(name); err != nil {
				t.Errorf("an archive has the image %q: %v", name, err)
			}
		}
	})
}
