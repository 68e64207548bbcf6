// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"berth/test/testimage"
)

// compressions are the ways in which an archive may be compressed.
var compressions = map[string]func(t *testing.T, w io.Writer) io.WriteCloser{
	"gzip": func(_ *testing.T, w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
	"zstd": func(t *testing.T, w io.Writer) io.WriteCloser {
		z, err := zstd.NewWriter(w)
		try(t, err)
		return z
	},
}

// compress writes a file again, compressed.
func compress(t *testing.T, path, how string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	try(t, err)
	var out bytes.Buffer
	w := compressions[how](t, &out)
	_, err = w.Write(b)
	try(t, err)
	try(t, w.Close())
	to := filepath.Join(t.TempDir(), "image."+how)
	try(t, os.WriteFile(to, out.Bytes(), 0o600))
	return to
}

// Archives are imported as docker save, skopeo and gzip or zstd write them. What is torn or
// compressed in another way is an error that says so.
func TestCompressedArchivesAreImported(t *testing.T) {
	i := store(t)
	img := imageOf(t, v1Config(), testimage.File{Name: "a", Body: []byte(strings.Repeat("a", 1<<16))})
	for how := range compressions {
		path := compress(t, archived(t, img), how)
		st, _, err := i.Import(t.Context(), path, "", unread)
		if err != nil || len(st) != 1 || st[0].Name.String() != "berth.test/hostile:1" {
			t.Errorf("%s: %+v %v", how, st, err)
		}
		b, err := os.ReadFile(path)
		try(t, err)
		try(t, os.WriteFile(path, b[:len(b)/2], 0o600))
		if st, _, err := i.Import(t.Context(), path, "", unread); err == nil {
			t.Errorf("half a file of %s: %+v", how, st)
		}
	}
	bz := filepath.Join(t.TempDir(), "image.tar.bz2")
	try(t, os.WriteFile(bz, []byte("BZh91AY&SY and more"), 0o600))
	if _, _, err := i.Import(t.Context(), bz, "", unread); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "gzip or zstd") {
		t.Errorf("%v", err)
	}
}

// What an archive says about its compression does not decide how much memory is used.
func TestAWindowThatIsTooLargeIsRefused(t *testing.T) {
	frame := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 22 << 3, 0x01, 0x00, 0x00} // a window of 4 GiB
	r, err := plain(bytes.NewReader(frame))
	if err == nil {
		_, err = io.ReadAll(r)
		try(t, r.Close())
	}
	if err == nil {
		t.Error("a window of 4 GiB was taken")
	}
}
