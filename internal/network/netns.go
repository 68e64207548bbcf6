// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/namespace"
)

// prefix begins the names of this berth's pins: others may have theirs in the same directory.
func (n *Network) prefix() string { return "berth-" + n.cfg.Owner + "-" }

// PathFor returns where the namespace of a pod is pinned.
func (n *Network) PathFor(podID string) string {
	return filepath.Join(n.cfg.NetNSDir, n.prefix()+podID)
}

// Pinned lists the pods whose namespace is pinned in berth's directory.
func (n *Network) Pinned(context.Context) (podIDs []string, err error) {
	entries, err := os.ReadDir(n.cfg.NetNSDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	for _, e := range entries {
		if id, ok := strings.CutPrefix(e.Name(), n.prefix()); ok {
			podIDs = append(podIDs, id)
		}
	}
	return podIDs, nil
}

// CreateNS makes a network namespace with its loopback up, pinned at path. If one is pinned there
// already, it is kept.
func (n *Network) CreateNS(_ context.Context, path string) error {
	return n.createNS(path, func() error { return namespace.InThread(func() error { return pin(path) }) })
}

// createNS calls create, which pins a namespace at path, unless one is pinned there already.
func (n *Network) createNS(path string, create func() error) error {
	if !filepath.IsAbs(path) || filepath.Dir(path) != filepath.Clean(n.cfg.NetNSDir) {
		return fmt.Errorf("make network namespace: %s is not in %s: %w", path, n.cfg.NetNSDir, errdefs.ErrInvalidArgument)
	}
	if pinned, _ := namespace.IsPinned(path); pinned {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o444)
	if err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	_ = f.Close()
	if err := create(); err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("make network namespace %s: %w", path, err)
	}
	return nil
}

// pin makes a namespace in this thread and mounts it at path.
func pin(path string) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	return nil
}

// loopbackUp sets the loopback of this thread's namespace up.
func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set loopback up: %w", err)
	}
	return nil
}

// RemoveNS removes the pin. The namespace ends with the last process in it. Removing an absent pin
// succeeds.
func (n *Network) RemoveNS(_ context.Context, path string) error {
	if filepath.Dir(path) != filepath.Clean(n.cfg.NetNSDir) {
		return fmt.Errorf("remove network namespace: %s is not in %s: %w", path, n.cfg.NetNSDir, errdefs.ErrInvalidArgument)
	}
	if err := namespace.Unpin(path); err != nil {
		return fmt.Errorf("remove network namespace: %w", err)
	}
	return nil
}
