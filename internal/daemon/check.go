// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/base/asynclog"
	"berth/internal/base/config"
	"berth/internal/base/connection"
	"berth/internal/history/observe"
	"berth/internal/serve/stream"
)

// Check reports settings with which berth cannot start on this host, and programs of runtime
// handlers that are not there. It changes nothing, and may run beside a berth. Serve refuses the
// former by the same function, and logs the latter, because the pods of other handlers go on.
func Check(cfg config.Config) error {
	return errors.Join(refused(cfg), missing(cfg))
}

// refused reports settings with which berth cannot start on this host.
func refused(cfg config.Config) error {
	errs := []error{
		checkDir("root", cfg.Root, rootMode, "berth.db", "berth.journal"),
		checkDir("state", cfg.State, stateMode, "containerd", "exec", "pause"),
	}
	b := base{cfg: cfg, log: asynclog.New(os.Stderr, func(io.Writer) slog.Handler { return slog.DiscardHandler })}
	var err error
	if b.libexec, err = findLibexec(cfg.Libexec); err != nil {
		errs = append(errs, err)
	}
	if b.embeds() {
		errs = append(errs, b.embedConfig().Check())
		for name, r := range cfg.Runtimes {
			if r.Snapshotter != "" && !b.embedConfig().HasSnapshotter(r.Snapshotter) {
				errs = append(errs, fmt.Errorf("runtimes.%s.snapshotter: %q is not built in; use overlayfs or native, add a table [snapshotters.%s], or use a containerd beside berth", name, r.Snapshotter, r.Snapshotter))
			}
		}
	} else if c, err := connection.Dial(cfg.Containerd.Address); err != nil {
		errs = append(errs, err)
	} else {
		_ = c.Close()
	}
	if _, err := b.makeHandlers(); err != nil {
		errs = append(errs, err)
	}
	if _, err := stream.LoadTLS(cfg.Streams.CertFile, cfg.Streams.KeyFile, cfg.Streams.ClientCA); err != nil {
		errs = append(errs, err)
	}
	t, err := observe.NewTracing(context.Background(), cfg.Tracing)
	if t != nil {
		_ = t.Close()
	}
	return errors.Join(append(errs, err)...)
}

// missing reports the programs of runtime handlers that are not there.
func missing(cfg config.Config) error {
	libexec, err := findLibexec(cfg.Libexec)
	if err != nil {
		return nil // refused has it
	}
	var errs []error
	for name, r := range cfg.Runtimes {
		shim := r.Type
		if parts := strings.Split(r.Type, "."); !filepath.IsAbs(shim) && len(parts) > 2 {
			shim = "containerd-shim-" + strings.Join(parts[len(parts)-2:], "-")
		}
		for key, program := range map[string]string{"type": shim, "binary": r.Binary} {
			if program == "" || !filepath.IsAbs(program) && cfg.Containerd.Address != "" {
				continue // another containerd has a PATH of its own
			}
			_, beside := os.Stat(filepath.Join(libexec, program))
			if _, err := exec.LookPath(program); err != nil && beside != nil {
				errs = append(errs, fmt.Errorf("runtimes.%s.%s: the program %s is not there: %w", name, key, program, err))
			}
		}
	}
	return errors.Join(errs...)
}

// hostDirs are directories of the host: berth would keep other programs out of them.
var hostDirs = strings.Fields(`/ /bin /boot /etc /home /lib /lib64 /media /mnt /opt /root /run /run/user /sbin /srv
	/tmp /usr /usr/bin /usr/lib /usr/local /usr/local/bin /usr/share /var /var/cache /var/lib /var/log /var/run /var/spool /var/tmp`)

// checkDir reports a directory that berth cannot have for itself. Because berth closes its own
// directories to others, it takes none of the host, no mount point with other files, and none that
// is open to others and has other files. A directory in which an earlier berth has made one of the
// entries made is berth's. key is the setting.
func checkDir(key, path string, mode os.FileMode, made ...string) error {
	resolved := path
	if p, err := filepath.EvalSymlinks(path); err == nil {
		resolved = p
	}
	for _, p := range []string{filepath.Clean(path), resolved} {
		first, _, _ := strings.Cut(strings.TrimPrefix(p, "/"), "/")
		if slices.Contains(hostDirs, p) || slices.Contains([]string{"proc", "sys", "dev"}, first) {
			return fmt.Errorf("%s: %s is a directory of the host; use one that berth has for itself, such as /var/lib/berth or /run/berth", key, p)
		}
	}
	entries, err := os.ReadDir(resolved)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil // berth makes it, or a user asks who may not see it
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	var foreign string
	for _, e := range entries {
		if slices.Contains(made, e.Name()) {
			return nil
		}
		if e.Name() != "lost+found" && e.Type() != os.ModeSocket { // a socket unit makes sockets before berth
			foreign = e.Name()
		}
	}
	st, err := os.Stat(resolved)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", key, err)
	case foreign == "":
	case st.Mode().Perm()&^mode != 0:
		return fmt.Errorf("%s: directory %s holds %s, which is not berth's, and berth would reduce its mode from %o to %o; use a directory that berth has for itself",
			key, path, foreign, st.Mode().Perm(), st.Mode().Perm()&mode)
	case isMount(resolved, st):
		return fmt.Errorf("%s: %s is a mount of the host and holds %s, which is not berth's; use a directory in it", key, path, foreign)
	}
	return nil
}

// isMount reports whether a file system is mounted at a directory, from Linux 5.8 on also if it is
// a bind mount.
func isMount(path string, st os.FileInfo) bool {
	var x unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, 0, &x); err == nil && x.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return x.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	}
	above, err := os.Stat(filepath.Dir(path))
	return err == nil && above.Sys().(*syscall.Stat_t).Dev != st.Sys().(*syscall.Stat_t).Dev
}
