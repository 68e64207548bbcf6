// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/contrib/apparmor"

	"berth/internal/selinux"
)

// The modes of berth's own directories. Root holds images and records, which are nobody else's
// business. State has to be traversable: a container in a user namespace reaches its root file
// system through it.
const (
	rootMode  = 0o700
	stateMode = 0o711
)

// makeDir makes a directory of berth's own, or takes one that exists. A mode that allows more than
// this one is reduced to it: an earlier version, a package or a person may have made the directory.
// A directory of another user is refused, because its owner could open it to others again.
func makeDir(path string, mode fs.FileMode) error {
	if err := os.MkdirAll(path, mode); err != nil {
		return fmt.Errorf("make directory %s: %w", path, err)
	}
	st, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("make directory %s: %w", path, err)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
		return fmt.Errorf("use directory %s: it belongs to user %d; give it to user %d with chown, or configure another directory", path, sys.Uid, os.Geteuid())
	}
	if have := st.Mode().Perm(); have&^mode != 0 {
		if err := os.Chmod(path, have&mode); err != nil {
			return fmt.Errorf("reduce the mode of directory %s from %o: %w", path, have, err)
		}
	}
	return nil
}

// findLibexec returns the directory of the shim, runc and the pause program. Without a configured
// one it looks where BERTH_LIBEXEC says, beside the binary, and in /usr/local.
func findLibexec(configured string) (string, error) {
	candidates := []string{configured}
	if configured == "" {
		candidates = []string{os.Getenv("BERTH_LIBEXEC")}
		if exe, err := os.Executable(); err == nil {
			bin := filepath.Dir(exe)
			candidates = append(candidates, filepath.Join(bin, "../libexec/berth"), filepath.Join(bin, "../libexec"))
		}
		candidates = append(candidates, "/usr/local/libexec/berth")
	}
	for _, d := range candidates {
		if d == "" {
			continue
		}
		if _, err := os.Stat(filepath.Join(d, "pause")); err == nil {
			return filepath.Abs(d)
		}
	}
	return "", fmt.Errorf("find the pause program: it is in none of %q; install berth with `make install`, or set --libexec to its directory", candidates)
}

// cniDirs are the directories of the CNI plug-ins that berth brings along.
func cniDirs(libexec string) []string {
	dirs := []string{filepath.Join(libexec, "cni"), filepath.Join(libexec, "../cni")}
	if d := os.Getenv("BERTH_CNI_BIN"); d != "" {
		dirs = append(dirs, d)
	}
	return dirs
}

// installPause makes the root file system that all pause processes share and returns its path. It
// contains the program and mount points, and is read-only to the processes.
func installPause(libexec, dir string) (string, error) {
	root := filepath.Join(dir, "rootfs")
	for _, d := range []string{"dev", "proc", "sys"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return "", fmt.Errorf("install the pause program: %w", err)
		}
	}
	b, err := os.ReadFile(filepath.Join(libexec, "pause"))
	if err != nil {
		return "", fmt.Errorf("install the pause program: %w", err)
	}
	path := filepath.Join(root, "pause")
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, b) {
		return root, nil
	}
	next := path + ".new" // a program that runs cannot be written to (ETXTBSY), only replaced
	//nolint:gosec // a program has to be executable
	if err := errors.Join(os.WriteFile(next, b, 0o755), os.Rename(next, path)); err != nil {
		return "", fmt.Errorf("install the pause program: %w", err)
	}
	return root, nil
}

// publish gives the pause program, and the layers of images below the embedded containerd's directory,
// the SELinux label of files that every container may read. The root file system of a container has
// a label of its own, but of a file that a program has mapped the kernel checks the layer's. Layers
// that were there without the label cost the first start some time.
func publish(l *selinux.Labels, pause, containerd string) error {
	layers, err := filepath.Glob(filepath.Join(containerd, "io.containerd.snapshotter.v1.*", "snapshots"))
	if err != nil {
		return fmt.Errorf("look for layers: %w", err)
	}
	var errs []error
	for _, dir := range append(layers, pause) {
		errs = append(errs, l.Publish(dir))
	}
	return errors.Join(errs...)
}

// appArmorProfile is the name of the default profile, as other runtimes have it.
const appArmorProfile = "cri-containerd.apparmor.d"

// appArmorTimeout bounds the loading of a profile, which a program does.
const appArmorTimeout = 10 * time.Second

// appArmor is the default profile in the kernel.
type appArmor struct {
	load func(profile string) error // does nothing for a profile that is loaded

	mu      sync.Mutex
	loading chan struct{} // closed once the profile was loaded, or could not be; nil: nobody loads it
	err     error         // of the last time
}

// openAppArmor returns nil where AppArmor is off, or is not for this host to use: in a container, for
// example, which has no access to the kernel's profiles. A profile that cannot be loaded is logged:
// pods that it is to confine are refused until it can be.
func openAppArmor(log *slog.Logger) *appArmor {
	b, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	if err != nil || len(b) == 0 || b[0] != 'Y' {
		return nil
	}
	if _, err := os.Stat("/sys/kernel/security/apparmor"); errors.Is(err, fs.ErrNotExist) {
		log.Warn("this kernel has AppArmor, but its profiles are not at /sys/kernel/security/apparmor: containers run without it")
		return nil
	}
	a := &appArmor{load: apparmor.LoadDefaultProfile}
	go func() { // berth serves meanwhile
		if err := a.ensure(); err != nil {
			log.Error("the default AppArmor profile cannot be loaded: containers that do not ask for another one are refused", "profile", appArmorProfile, "err", err)
		}
	}()
	return a
}

// ensure loads the profile unless it is loaded: somebody may have removed it since. Whoever asks at
// the same time shares the work, within a bound.
func (a *appArmor) ensure() error {
	a.mu.Lock()
	loading := a.loading
	if loading == nil {
		loading = make(chan struct{})
		a.loading = loading
		go func() {
			err := a.load(appArmorProfile)
			a.mu.Lock()
			defer a.mu.Unlock()
			a.err, a.loading = err, nil
			close(loading)
		}()
	}
	a.mu.Unlock()
	t := time.NewTimer(appArmorTimeout)
	defer t.Stop()
	select {
	case <-loading:
		return a.last()
	case <-t.C:
		return fmt.Errorf("load AppArmor profile %s: apparmor_parser has not ended within %s", appArmorProfile, appArmorTimeout)
	}
}

func (a *appArmor) last() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// warning is what a person should know of the profile; "" for nothing.
func (a *appArmor) warning() string {
	if a == nil || a.last() == nil {
		return ""
	}
	return fmt.Sprintf("the default AppArmor profile cannot be loaded, and containers that do not ask for another one are refused; install apparmor_parser: %v", a.last())
}
