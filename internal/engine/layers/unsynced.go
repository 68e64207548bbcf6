// SPDX-License-Identifier: Apache-2.0

// This file holds a trick whole: writable layers that are never synced. It relies on details that
// overlayfs and containerd do not promise: where overlayfs keeps the mark of such a mount, and that
// only berth mounts the layer. The setting containerd.sync_layers turns it off. Delete when
// containerd's snapshotter can mount the layers of containers without syncs by itself:
// https://github.com/containerd/containerd/issues/6406.

package layers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/kernelversion"

	"berth/internal/images/imagestore"
)

// volatile is the option of overlayfs that leaves out every sync, since Linux 5.10.
const volatile = "volatile"

// canLeaveUnsynced reports whether overlayfs knows the option volatile.
func canLeaveUnsynced() bool {
	ok, err := kernelversion.GreaterEqualThan(kernelversion.KernelVersion{Kernel: 5, Major: 10})
	return err == nil && ok
}

// writable returns the mounts of a root filesystem with its writable layer mounted without syncs,
// unless synced is set. With syncs an unmount, and so each release, waits until all data that was
// written to the same disk is on it. If the node crashes, a layer is lost that no container uses
// after that.
//
// The kernel marks such a layer and refuses to mount it again, because it cannot know whether the
// node crashed meanwhile. The mark is taken away here: a start that was cut off may have left it,
// and after a reboot no container is started whose layer was ever mounted.
func writable(ms []mount.Mount, synced bool) ([]mount.Mount, error) {
	ms = slices.Clone(ms)
	for i, m := range ms {
		work := imagestore.OptionOf(m.Options, "workdir=")
		if m.Type != "overlay" || work == "" { // a view has no writable layer
			continue
		}
		mark := filepath.Join(work, "work", "incompat", volatile)
		if err := os.Remove(mark); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("take away the mark of an earlier mount: %w", err)
		}
		if !synced && !slices.Contains(m.Options, volatile) {
			ms[i].Options = append(slices.Clone(m.Options), volatile)
		}
	}
	return ms, nil
}
