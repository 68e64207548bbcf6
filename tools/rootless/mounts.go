// SPDX-License-Identifier: Apache-2.0

package rootless

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	cgroups  = "/sys/fs/cgroup"
	resolver = "/etc/resolv.conf"
)

// mounts mounts the file systems that must belong to these namespaces: processes, networks,
// cgroups, and a /run that the user may write to, in which the user's own directory is the same as
// outside. The kernel removes all of it with the namespaces.
func mounts() error {
	names, err := os.ReadFile(resolver)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the name servers of this host: %w", err)
	}
	users := os.Getenv("XDG_RUNTIME_DIR")
	if at, err := filepath.EvalSymlinks(users); err == nil { // /var/run is a link to /run
		users = at
	}
	keep := -1
	if strings.HasPrefix(users, "/run/") {
		if keep, err = unix.Open(users, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("open XDG_RUNTIME_DIR %s: %w", users, err)
		}
		defer unix.Close(keep)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to these namespaces: %w", err)
	}
	// for mountPropagation of pods
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts with pods: %w", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	for _, m := range []struct {
		fs, at string
		flags  uintptr
		data   string
	}{
		{"proc", "/proc", flags, ""},
		{"sysfs", "/sys", flags, ""},
		{"cgroup2", cgroups, flags, ""},
		{"tmpfs", "/run", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
	} {
		if err := unix.Mount(m.fs, m.at, m.fs, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s at %s: %w: in a container, parts of the file system may be hidden from users, "+
				"and the kernel does not let them mount it anew", m.fs, m.at, err)
		}
	}
	if keep >= 0 {
		if err := os.MkdirAll(users, 0o700); err != nil {
			return err
		}
		if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", keep), users, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("keep XDG_RUNTIME_DIR %s: %w", users, err)
		}
	}
	return nameServers(names)
}

// nameServers replaces the host's /etc/resolv.conf, because it may be a link into the host's /run,
// and its servers may be on the host's loopback. names is the host's file; if slirp4netns has made
// an interface, its server is asked.
func nameServers(names []byte) error {
	if _, err := os.Stat("/sys/class/net/tap0"); err == nil {
		names = []byte("nameserver " + nameserver + "\n")
	}
	const file = "/run/resolv.conf"
	if err := os.WriteFile(file, names, 0o644); err != nil {
		return err
	}
	at, err := filepath.EvalSymlinks(resolver)
	if errors.Is(err, fs.ErrNotExist) { // there is none, or it is a link to a hidden file
		link, err := os.Readlink(resolver)
		if err != nil {
			return nil
		}
		if !filepath.IsAbs(link) {
			link = filepath.Join(filepath.Dir(resolver), link)
		}
		if !strings.HasPrefix(link, "/run/") {
			return nil
		}
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			return err
		}
		return os.Symlink(file, link)
	}
	if err == nil {
		err = unix.Mount(file, at, "", unix.MS_BIND, "")
	}
	if err != nil {
		return fmt.Errorf("put name servers at %s: %w", resolver, err)
	}
	return nil
}
