// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"

	"berth/internal/base/connection"
)

// Namespace is the containerd namespace that berth keeps everything in, the one
// that ctr, nerdctl and node agents expect CRI objects in.
const Namespace = connection.Namespace

const (
	// maxSocketDir is the longest directory for shim sockets: a socket's file
	// name is 64 hexadecimal digits, and sun_path (unix(7)) ends at 107 bytes.
	maxSocketDir = 42
	// maxAddress is the longest API socket path that containerd accepts.
	maxAddress = 104
)

// Config contains the directories and settings of the server. Root, State and Logger are required.
type Config struct {
	// Root is for data that survives a reboot: content, snapshots, metadata. Absolute; made 0700.
	Root string
	// State is for volatile data: task bundles and the API sockets. Absolute, at most 82 bytes long
	// (a socket lies in it), not Root; made 0711.
	State string
	// Snapshotter is the one that images are unpacked with: "overlayfs" (the default), "native",
	// which copies and needs nothing of the kernel, or one of Proxies.
	Snapshotter string
	// Proxies are snapshotters that are programs of their own, by name.
	Proxies map[string]Proxy
	// SocketDir keeps the sockets of the shims. Absolute, at most 42 bytes long; made 0700. Default:
	// State/s. Running shims are found by their recorded address, so a change affects new ones only.
	SocketDir string
	// Libexec, if set, is put in front of PATH of this process, so that
	// containerd and its shims find containerd-shim-runc-v2 and runc in it.
	Libexec string
	// LeaveTasks has containerd take up all tasks itself when it starts, and none be set aside.
	LeaveTasks bool
	// Program returns the program by which containerd is to clean up after the tasks in the shim of
	// a pod, when it takes up a task or a shim that ran before the server was started; "" for that
	// of the runtime. shim is the PID that the shim reported, or 0. It may be nil.
	Program func(ctx context.Context, pod string, shim int, kind string, options typeurl.Any) string
	// WriteLate lets the kernel decide when it writes back unpacked files: see [durable.Early].
	WriteLate bool
	// Debug makes containerd, and the shims that it starts, log at debug level.
	Debug bool
	// Logger gets containerd's log lines.
	Logger *slog.Logger
}

func (c Config) address() string      { return filepath.Join(c.State, "containerd.sock") }
func (c Config) ttrpcAddress() string { return c.address() + ".ttrpc" }

// Check returns ErrInvalidArgument for a Config that cannot work on any host.
func (c Config) Check() error {
	_, err := c.complete()
	return err
}

// HasSnapshotter reports whether the server has a snapshotter.
func (c Config) HasSnapshotter(name string) bool {
	_, ok := c.Proxies[name]
	return ok || slices.Contains(parts, "io.containerd.snapshotter.v1."+name)
}

// complete fills in defaults and checks the rest.
func (c Config) complete() (Config, error) {
	if c.Snapshotter == "" {
		c.Snapshotter = "overlayfs"
	}
	if c.SocketDir == "" && c.State != "" {
		c.SocketDir = filepath.Join(c.State, "s")
	}
	for _, dir := range []struct{ name, path string }{
		{"Root", c.Root}, {"State", c.State}, {"SocketDir", c.SocketDir},
	} {
		if !filepath.IsAbs(dir.path) {
			return c, fmt.Errorf("%s %q: give an absolute path: %w", dir.name, dir.path, errdefs.ErrInvalidArgument)
		}
	}
	c.Root, c.State, c.SocketDir = filepath.Clean(c.Root), filepath.Clean(c.State), filepath.Clean(c.SocketDir)
	switch {
	case c.Root == c.State:
		return c, fmt.Errorf("directory %s is both Root and State: give two: %w", c.Root, errdefs.ErrInvalidArgument)
	case len(c.SocketDir) > maxSocketDir:
		return c, fmt.Errorf("shim socket directory %s: %d bytes, %d at most, or its sockets' paths do not fit: give a shorter one: %w",
			c.SocketDir, len(c.SocketDir), maxSocketDir, errdefs.ErrInvalidArgument)
	case len(c.ttrpcAddress()) > maxAddress:
		return c, fmt.Errorf("state directory %s: %d bytes, %d at most, or the sockets' paths do not fit: give a shorter one: %w",
			c.State, len(c.State), maxAddress-len("/containerd.sock.ttrpc"), errdefs.ErrInvalidArgument)
	case !c.HasSnapshotter(c.Snapshotter):
		return c, fmt.Errorf("containerd.snapshotter: %q is not built in; use overlayfs or native, add a table [snapshotters.%s], or use a containerd beside berth: %w", c.Snapshotter, c.Snapshotter, errdefs.ErrInvalidArgument)
	case c.Logger == nil:
		return c, fmt.Errorf("logger: give one: %w", errdefs.ErrInvalidArgument)
	}
	return c, nil
}

// prepare makes the directories. The modes are set even on directories that
// exist: a looser mode of an older installation must not stay.
func (c Config) prepare() error {
	for _, dir := range []struct {
		path string
		mode os.FileMode
	}{
		{c.Root, 0o700}, {c.State, 0o711}, {c.SocketDir, 0o700},
	} {
		if err := os.MkdirAll(dir.path, dir.mode); err != nil {
			return fmt.Errorf("make directory %s: %w", dir.path, err)
		}
		if err := os.Chmod(dir.path, dir.mode); err != nil {
			return fmt.Errorf("make directory %s mode %o: %w", dir.path, dir.mode, err)
		}
	}
	if c.Libexec == "" {
		return nil
	}
	path := filepath.SplitList(os.Getenv("PATH"))
	if len(path) > 0 && path[0] == c.Libexec {
		return nil
	}
	path = append([]string{c.Libexec}, path...)
	if err := os.Setenv("PATH", strings.Join(path, string(filepath.ListSeparator))); err != nil {
		return fmt.Errorf("put %s on PATH: %w", c.Libexec, err)
	}
	return nil
}
