// SPDX-License-Identifier: Apache-2.0

package image

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A name is whole, and the digest in it is that of its target: PROPERTIES 57.
func TestANameIsNormalAndItsDigestIsItsTargets(t *testing.T) {
	of := func(c string) digest.Digest { return digest.Digest("sha256:" + strings.Repeat(c, 64)) }
	target, id := ocispec.Descriptor{Digest: of("d")}, of("a").String()
	for text, want := range map[string]form{
		"docker.io/library/busybox:latest":              byTag,
		"r.example:5000/a/b:1":                          byTag,
		"docker.io/library/busybox@" + of("d").String(): byDigest,
		id:                  byID,
		"":                  wrong,
		"busybox":           wrong,
		"busybox:latest":    wrong,
		"r.example/a":       wrong,
		"R.example/UPPER:1": wrong,
		"docker.io/library/busybox@" + of("e").String():   wrong,
		"r.example/a:1@" + of("d").String():               wrong,
		"import-2026-01-01@" + of("d").String():           wrong,
		of("d").String():                                  wrong, // the target's and not the image's
		strings.TrimPrefix(id, "sha256:"):                 wrong,
		"docker.io/library/sha256:" + id[len("sha256:"):]: byTag, // which is not the ID
	} {
		n, err := NewName(text, target, id)
		if n.form != want || (want == wrong) != errdefs.IsInvalidArgument(err) || n.String() != text || n.Target().Digest != of("d") {
			t.Errorf("%q: %+v %v", text, n, err)
		}
	}
}
