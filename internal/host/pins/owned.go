// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/pkg/sys"
	"golang.org/x/sys/unix"

	"berth/internal/host/namespace"
)

// UserIDs are the IDs of this host that the users and groups of a user namespace stand for.
type UserIDs struct {
	UID, GID   uint32 // of root in the namespace
	UIDs, GIDs uint32 // how many there are
}

// CreateOwned makes a network namespace that belongs to a new user namespace, with its loopback up,
// pinned at path. Only root of that user namespace may change the network there and mount a sysfs.
// The user namespace lives as long as the network namespace; see Owner. If a namespace is pinned at
// path already, it is kept.
func (n *Networks) CreateOwned(ctx context.Context, path string, ids UserIDs) error {
	return n.create(path, func() error {
		err := pinOwned(path, ids)
		for again := 1; again < ownedAttempts && ended(err); again++ {
			err = pinOwned(path, ids)
		}
		if err == nil {
			err = namespace.InThread(func() error { return upIn(path) })
		}
		if err != nil {
			return errors.Join(err, n.Remove(ctx, path))
		}
		return nil
	})
}

// ownedAttempts is how often a namespace is made whose process ended too early.
const ownedAttempts = 5

// ended reports whether the process that holds a new namespace ended before the namespace was
// pinned. The kernel kills the process with the thread that has started it, and Go may end that
// thread at any time: see namespace.InThread.
func ended(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }

// pinOwned makes both namespaces, by a process that does nothing in them, and pins the one of the
// network. No thread may end in here: see ended.
func pinOwned(path string, ids UserIDs) error {
	uids, gids := fmt.Sprintf("0:%d:%d", ids.UID, ids.UIDs), fmt.Sprintf("0:%d:%d", ids.GID, ids.GIDs)
	return sys.UnshareAfterEnterUserns(uids, gids, unix.CLONE_NEWNET, func(pid int) error {
		if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/net", pid), path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("pin: %w", err)
		}
		return nil
	})
}

// upIn enters the namespace at path with this thread, and sets its loopback up.
func upIn(path string) error {
	if err := namespace.EnterNetwork(path); err != nil {
		return err
	}
	return loopbackUp()
}

// Owner opens the user namespace that owns the network namespace pinned at path. The caller closes
// it.
func (n *Networks) Owner(path string) (*os.File, error) {
	ns, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("find owner of network namespace: %w", err)
	}
	defer ns.Close()
	fd, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		return nil, fmt.Errorf("find owner of network namespace %s: %w", path, err)
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), path), nil
}
