// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/base/retry"
)

// ReleaseLeases removes the leases of addresses of berth's own bridge that belong to no pod on
// record: neither the ID in the file nor the address is that of one. host-local does not sync its
// files, so that a power cut leaves a file without the ID of its pod, and the address would be
// taken for ever. It is called when berth starts, after the records were read. A pod is on record
// before it gets an address, and host-local writes under a lock that is held here, so that no lease
// is removed that is being made.
func (n *Network) ReleaseLeases(ctx context.Context, onRecord func(podID, address string) bool) error {
	b := n.cfg.Default
	if b == nil {
		return nil
	}
	dir := filepath.Join(b.DataDir, ownNetwork)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := lockLeases(ctx, dir)
	if err != nil {
		return fmt.Errorf("release leases of addresses: %w", err)
	}
	defer lock.Close()
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if net.ParseIP(e.Name()) == nil || ctx.Err() != nil {
			continue
		}
		path := filepath.Join(dir, e.Name())
		text, readErr := os.ReadFile(path)
		if readErr != nil {
			err = errors.Join(err, readErr)
			continue
		}
		id, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
		if id = strings.TrimSpace(id); onRecord(id, e.Name()) {
			continue
		}
		if removed := os.Remove(path); removed != nil {
			err = errors.Join(err, removed)
			continue
		}
		n.cfg.Logger.Info("lease of an address released, it belongs to no pod on record", "address", e.Name(), "pod", id)
	}
	if err != nil {
		return fmt.Errorf("release leases of addresses: %w", err)
	}
	return nil
}

// lockLeases takes host-local's lock of a directory of leases. The caller closes the file.
func lockLeases(ctx context.Context, dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for range retry.Doubling(ctx.Done(), 10*time.Millisecond, time.Second) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(err, f.Close())
		}
	}
	return nil, errors.Join(ctx.Err(), f.Close())
}
