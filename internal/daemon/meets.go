// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"log/slog"
	"sync"

	"github.com/containerd/errdefs"

	"berth/internal/heart/state"
	"berth/internal/host/pidfd"
)

// knownContainerd is the record of which containerd has the pods.
type knownContainerd struct {
	root string // of berth
	log  *slog.Logger
	mu   sync.Mutex // held while the record changes
}

// meets notes which containerd berth works with. Another one has nothing of what is on record, and
// berth would take that for gone, and leave it behind: it is not used before all pods are removed.
// After a reboot nothing of them runs, and any is used; what the one before has of them, such as
// layers and container objects, stays in its directory, and goes when berth works with it again.
// Where the record cannot be read, nobody knows, and berth, which asks again within a second, works
// with none meanwhile. Where the record is damaged, or a containerd has no UUID, that keeps berth
// from none. stateDir is where it has its bundles, as far as that is on record.
func (k *knownContainerd) meets(uuid string, units int) (stateDir string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	was, err := state.ReadContainerd(k.root)
	switch {
	case err != nil && !errdefs.IsDataLoss(err) && units > 0:
		return "", fmt.Errorf("it is not known whether this is the containerd that has the %d pods and containers on record: %w: %w", units, err, errdefs.ErrUnavailable)
	case err != nil:
		k.log.Warn("it is not known whether this is the containerd that has the pods", "err", err)
	}
	boot, err := pidfd.BootID()
	if err != nil {
		k.log.Warn("it is not known whether the pods are of an earlier boot", "err", err)
		boot = was.Boot
	}
	is := state.Containerd{UUID: uuid, Boot: boot}
	if uuid == was.UUID {
		is.StateDir = was.StateDir
	}
	if uuid == "" || is == was {
		return is.StateDir, nil
	}
	if err := was.Meets(is, k.root, units); err != nil {
		return "", fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	}
	if err := is.Note(k.root); err != nil {
		k.log.Warn("berth will not notice if another containerd takes the place of this one", "err", err)
	}
	return is.StateDir, nil
}

// noteStateDir puts the state directory of the containerd that berth works with on record, so that
// the next berth finds what is left of a pod whose shim has ended meanwhile.
func (k *knownContainerd) noteStateDir(dir string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	is, err := state.ReadContainerd(k.root)
	if is.StateDir = dir; err == nil && is.UUID != "" {
		err = is.Note(k.root)
	}
	if err != nil {
		k.log.Warn("the state directory of containerd is not on record", "dir", dir, "err", err)
	}
}
