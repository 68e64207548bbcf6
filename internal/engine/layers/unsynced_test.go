// SPDX-License-Identifier: Apache-2.0

package layers

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
)

// A layer that was mounted before is mounted again, without syncs, and nothing else is changed.
func TestAWritableLayerIsMountedWithoutSyncs(t *testing.T) {
	work := t.TempDir()
	mark := filepath.Join(work, "work", "incompat", "volatile")
	layer := mount.Mount{
		Type:    "overlay",
		Source:  "overlay",
		Options: []string{"index=off", "workdir=" + work, "upperdir=/u", "lowerdir=/l"},
	}
	for _, synced := range []bool{false, true} {
		if err := os.MkdirAll(mark, 0o700); err != nil {
			t.Fatal(err)
		}
		got, err := writable([]mount.Mount{layer}, synced)
		if err != nil {
			t.Fatal(err)
		}
		want := slices.Clone(layer.Options)
		if !synced {
			want = append(want, "volatile")
		}
		if !slices.Equal(got[0].Options, want) {
			t.Errorf("it is mounted with %q", got[0].Options)
		}
		if len(layer.Options) != 4 {
			t.Errorf("the snapshotter's mount was changed: %q", layer.Options)
		}
		if _, err := os.Stat(mark); !os.IsNotExist(err) {
			t.Errorf("the mark of an earlier mount is there: %v", err)
		}
	}
	for _, m := range []mount.Mount{
		{Type: "overlay", Options: []string{"lowerdir=/a:/b"}},
		{Type: "bind", Options: []string{"rw", "rbind"}},
		{Type: "fuse3.fuse-overlayfs", Options: []string{"workdir=" + work}},
	} {
		if got, err := writable([]mount.Mount{m}, false); err != nil || !slices.Equal(got[0].Options, m.Options) {
			t.Errorf("%s is mounted with %q, %v", m.Type, got[0].Options, err)
		}
	}
}
