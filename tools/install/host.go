// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"berth/internal/base/wholefile"
)

// unitDirs are where systemd looks for units of the host.
var unitDirs = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// allowed returns why the files must not be written: somebody else's are there, or another berth
// is.
func (o Options) allowed(m *manifest, files []file) error {
	if o.Force {
		return nil
	}
	for _, f := range files {
		if f.config {
			continue
		}
		have, err := wholefile.SumOf(o.on(f.path))
		switch {
		case err != nil:
			return err
		case have == "" || m.wrote(f.path, have):
		case m.sums[f.path] != nil:
			return fmt.Errorf("%s was changed after it was installed; --force replaces it", o.on(f.path))
		default:
			return fmt.Errorf("%s is there, and berth install has not written it: if a package has, upgrade or remove that; "+
				"--force replaces what is there", o.on(f.path))
		}
	}
	unit := o.place("lib/systemd/system/berth.service")
	ours, _ := filepath.EvalSymlinks(filepath.Dir(o.on(unit)))
	for _, dir := range unitDirs {
		there, err := filepath.EvalSymlinks(o.on(dir))
		if err != nil || there == ours || dir == filepath.Dir(unit) {
			continue
		}
		path := filepath.Join(there, "berth.service")
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
			return fmt.Errorf("another berth is installed, whose unit is %s: upgrade that one in its way, or uninstall it first", path)
		}
	}
	if pid, exe := o.serving(); exe != "" && exe != o.place("bin/berth") {
		return fmt.Errorf("another berth, %s (process %d), serves on this host: stop it first, or install over it with the --prefix it has", exe, pid)
	}
	return nil
}

// serving returns the berth that has the records of this host open, and its program; "" if there is
// none, or none that can be seen.
func (o Options) serving() (pid int, exe string) {
	if o.Root != "/" {
		return 0, ""
	}
	info, err := os.Stat("/var/lib/berth/berth.db")
	if err != nil {
		return 0, ""
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, ""
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		pid = holder(string(locks), st.Ino)
	}
	exe, _ = os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return pid, strings.TrimSuffix(exe, " (deleted)")
}

// holder finds in /proc/locks which process has locked the file with that inode number: lines such
// as "1: FLOCK ADVISORY WRITE 712 fe:00:131 0 EOF".
func holder(locks string, inode uint64) (pid int) {
	for line := range strings.Lines(locks) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || !strings.HasSuffix(f[5], ":"+strconv.FormatUint(inode, 10)) {
			continue
		}
		pid, _ = strconv.Atoi(f[4])
	}
	return pid
}

// idle returns an error that names the pods that have to end before berth can be removed.
func (o Options) idle(ctx context.Context) error {
	pods, err := running(o.on(o.place("libexec/berth")))
	if err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}
	if pods > 0 {
		return fmt.Errorf("uninstall: pods run here (%d of their shims and loggers do): remove them with `berth rm -f --all`", pods)
	}
	_, exe := o.serving()
	if exe == o.place("bin/berth") || o.active(ctx, "berth.service") || o.active(ctx, "berth.socket") {
		return errors.New("uninstall: berth runs: stop it with `systemctl disable --now berth berth.socket`")
	}
	return nil
}

func (o Options) active(ctx context.Context, unit string) bool {
	if o.Systemctl == nil {
		return false
	}
	state, _ := o.Systemctl(ctx, "is-active", unit) // it fails for a unit that is not
	return slices.Contains([]string{"active", "reloading", "activating"}, strings.TrimSpace(state))
}

// running counts the processes whose programs are, or were, below a directory.
func running(dir string) (count int, err error) {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("look for processes: %w", err)
	}
	for _, p := range all {
		exe, err := os.Readlink("/proc/" + p.Name() + "/exe")
		switch {
		case err == nil && strings.HasPrefix(exe, dir+"/"):
			count++
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENOMEM):
			return 0, fmt.Errorf("look at process %s: %w", p.Name(), err)
		}
	}
	return count, nil
}
