// SPDX-License-Identifier: Apache-2.0

package pins

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

	"berth/internal/host/namespace"
)

// Networks makes and removes pinned network namespaces in one directory. The thread that makes one
// is used for nothing else.
type Networks struct {
	dir    string
	prefix string // begins the names of this berth's pins
}

// NewNetworks returns the pins of an owner in dir, and makes dir. Others may have theirs in it.
func NewNetworks(dir, owner string) (*Networks, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of network namespaces: %w", err)
	}
	return &Networks{dir: filepath.Clean(dir), prefix: "berth-" + owner + "-"}, nil
}

// PathFor returns where the namespace of a pod is pinned.
func (n *Networks) PathFor(podID string) string { return filepath.Join(n.dir, n.prefix+podID) }

// Pinned lists the pods whose namespace is pinned.
func (n *Networks) Pinned(context.Context) (podIDs []string, err error) {
	entries, err := os.ReadDir(n.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	for _, e := range entries {
		if id, ok := strings.CutPrefix(e.Name(), n.prefix); ok {
			podIDs = append(podIDs, id)
		}
	}
	return podIDs, nil
}

// Create makes a network namespace with its loopback up, pinned at path. If one is pinned there
// already, it is kept.
func (n *Networks) Create(_ context.Context, path string) error {
	return n.create(path, func() error { return namespace.InThread(func() error { return pin(path) }) })
}

// create calls makeAndPin, unless a namespace is pinned at path already.
func (n *Networks) create(path string, makeAndPin func() error) error {
	if !filepath.IsAbs(path) || filepath.Dir(path) != n.dir {
		return fmt.Errorf("make network namespace: %s is not in %s: %w", path, n.dir, errdefs.ErrInvalidArgument)
	}
	pinned, err := namespace.IsPinned(path)
	if pinned || err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o444)
	if err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	_ = f.Close()
	if err := makeAndPin(); err != nil {
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

// Remove removes the pin. The namespace ends with the last process in it. Removing an absent pin
// succeeds.
func (n *Networks) Remove(_ context.Context, path string) error {
	if filepath.Dir(path) != n.dir {
		return fmt.Errorf("remove network namespace: %s is not in %s: %w", path, n.dir, errdefs.ErrInvalidArgument)
	}
	if err := namespace.Unpin(path); err != nil {
		return fmt.Errorf("remove network namespace: %w", err)
	}
	return nil
}

// RemoveAdopted removes the pin of a namespace that another runtime made, at any path. Call it only
// with a path from the pod's record. Removing an absent pin succeeds.
func (n *Networks) RemoveAdopted(_ context.Context, path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("remove network namespace: %q is not absolute: %w", path, errdefs.ErrInvalidArgument)
	}
	if err := namespace.Unpin(path); err != nil {
		return fmt.Errorf("remove network namespace: %w", err)
	}
	return nil
}
