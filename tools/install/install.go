// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"berth/internal/base/config"
	"berth/internal/base/wholefile"
)

// Options describe the source and the target of an installation.
type Options struct {
	From   string // the unpacked archive; not needed to uninstall
	Prefix string // an absolute path, such as /usr/local
	Root   string // the root directory of the host: "/", or the root of a package
	// Force replaces files that others wrote, installs although the configuration cannot be used, or
	// uninstalls although pods or berth run.
	Force bool
	Out   io.Writer

	// Systemctl runs systemctl on the host, and returns its output; nil if there is no systemd, and
	// for another Root than "/".
	Systemctl func(ctx context.Context, args ...string) (string, error)
}

// builtFor is the prefix that is in the unit files.
const builtFor = "/usr/local"

type file struct {
	path   string // on the host, without Root
	body   []byte
	mode   fs.FileMode
	config bool // one that exists stays
	says   string
}

// The settings of a host that are not in the archive.
const (
	crictlFile = "/etc/crictl.yaml"
	crictl     = "runtime-endpoint: unix:///run/berth/berth.sock\nimage-endpoint: unix:///run/berth/berth.sock\ntimeout: 10\n"

	driverFile = "/etc/berth/conf.d/10-systemd-cgroup.toml"
	driver     = "# systemd runs on this host: the kubelet needs cgroupDriver: systemd, which is its default with kubeadm.\n" +
		"[runtimes.runc]\nsystemd_cgroup = true\n"
)

// ofHost returns the settings of this host: the socket for crictl, if it has none, and where
// systemd runs, the cgroup driver. The driver of a node that has pods is not changed, so an upgrade
// leaves it; nor is that of a configuration that is there already.
func (o Options) ofHost(m *manifest) []file {
	files := []file{{path: crictlFile, body: []byte(crictl), mode: 0o644, config: true, says: "leads crictl to berth"}}
	_, err := os.Lstat(o.on("/etc/berth"))
	if first := len(m.sums) == 0 && errors.Is(err, fs.ErrNotExist); o.Systemctl != nil && (first || m.sums[driverFile] != nil) {
		files = append(files, file{
			path:   driverFile,
			body:   []byte(driver),
			mode:   0o600,
			config: true,
			says:   "sets systemd_cgroup, because systemd runs here; the kubelet needs cgroupDriver: systemd",
		})
	}
	return files
}

// Install installs. After an error it can be called again.
func Install(ctx context.Context, o Options) error {
	if err := o.check(); err != nil {
		return err
	}
	if err := o.readable(); err != nil {
		return err
	}
	files, err := o.files()
	if err != nil {
		return err
	}
	m, err := load(o.manifest())
	if err != nil {
		return err
	}
	files = append(files, o.ofHost(m)...)
	if err := o.allowed(m, files); err != nil {
		return err
	}
	changed, err := o.write(m, files)
	if err != nil {
		if errors.Is(err, syscall.EROFS) {
			err = fmt.Errorf("%w: choose another place with --prefix", err)
		}
		return err
	}
	if !changed {
		fmt.Fprintf(o.Out, "berth was installed under %s already; nothing was changed\n", filepath.Join(o.Root, o.Prefix))
		return nil
	}
	fmt.Fprintf(o.Out, "berth is installed under %s\n", filepath.Join(o.Root, o.Prefix))
	for _, f := range files {
		if f.says != "" && m.sums[f.path] != nil {
			fmt.Fprintf(o.Out, "%s %s\n", f.path, f.says)
		}
	}
	if err := o.restart(ctx); err != nil {
		return err
	}
	// From now on nothing of it need be repeated.
	m.begun = false
	return m.save()
}

// readable reads the configuration of the host as the berth that is to be installed will, which is
// this program. It is refused if that one would not start with it, as an older version does not if
// the file has a setting of a newer one.
func (o Options) readable() error {
	l, err := config.LoadIfThere(o.on("/etc/berth/config.toml"))
	if err == nil {
		err = l.Check()
	}
	if err == nil || o.Force {
		return nil
	}
	return fmt.Errorf("install: this version of berth would not start with the configuration of this host; nothing was changed: mend it, or install all the same with --force: %w", err)
}

// write writes the files, and reports whether that changed anything. The manifest is saved before,
// and records that an install has begun.
func (o Options) write(m *manifest, files []file) (changed bool, err error) {
	changed = m.begun
	todo := files[:0:0]
	stale := map[string]bool{}
	for path := range m.sums {
		stale[path] = true
	}
	for _, f := range files {
		delete(stale, f.path)
		have, err := wholefile.SumOf(o.on(f.path))
		if err != nil {
			return false, err
		}
		if have == wholefile.Sum(f.body) && m.wrote(f.path, have) || f.config && have != "" {
			continue
		}
		m.add(f.path, wholefile.Sum(f.body))
		todo = append(todo, f)
	}
	m.begun = changed || len(todo) > 0 || len(stale) > 0
	if !m.begun {
		return false, nil
	}
	dirs := map[string]bool{}
	for _, f := range append(todo, file{path: o.place("share/berth/" + installed)}) {
		for dir := filepath.Dir(f.path); dir != "/" && !dirs[dir]; dir = filepath.Dir(dir) {
			dirs[dir] = true
			if _, err := os.Stat(o.on(dir)); errors.Is(err, fs.ErrNotExist) && !slices.Contains(m.dirs, dir) {
				m.dirs = append(m.dirs, dir)
			}
		}
	}
	slices.Sort(m.dirs)
	// everybody may look for programs and manuals
	if err := os.MkdirAll(filepath.Dir(m.file), 0o755); err != nil {
		return false, err
	}
	if err := m.save(); err != nil {
		return false, err
	}
	for _, f := range todo {
		if err := os.MkdirAll(filepath.Dir(o.on(f.path)), 0o755); err != nil {
			return false, err
		}
		if err := replace(o.on(f.path), f.body, f.mode); err != nil {
			return false, err
		}
	}
	for path := range stale { // of an earlier version
		if _, err := o.remove(m, path); err != nil {
			return false, err
		}
	}
	for dir := range dirs {
		if err := wholefile.SyncDir(o.on(dir)); err != nil {
			return false, err
		}
	}
	for _, f := range todo {
		m.sums[f.path] = []string{wholefile.Sum(f.body)}
	}
	return true, nil
}

// restart has systemd take the new files, and a berth that runs restart.
func (o Options) restart(ctx context.Context) error {
	if o.Systemctl == nil {
		if o.Root == "/" {
			fmt.Fprintln(o.Out, "There is no systemd here: start berth, or restart it if it runs; pods live on.")
		}
		return nil
	}
	if _, err := o.Systemctl(ctx, "daemon-reload"); err != nil {
		return fmt.Errorf("berth is installed, and systemd does not take its units: %w", err)
	}
	if !o.active(ctx, "berth.service") {
		fmt.Fprintln(o.Out, "Next: systemctl enable --now berth; then berth status, and berth doctor")
		return nil
	}
	if _, err := o.Systemctl(ctx, "restart", "berth.service"); err != nil {
		return fmt.Errorf("berth is installed, and did not start again: %w: look into journalctl -u berth; pods live on meanwhile", err)
	}
	fmt.Fprintln(o.Out, "berth was restarted; its pods live on")
	return nil
}

// Uninstall removes the unchanged files of Install, and prints the others.
func Uninstall(ctx context.Context, o Options) error {
	if err := o.check(); err != nil {
		return err
	}
	m, err := load(o.manifest())
	if err != nil {
		return err
	}
	if len(m.sums)+len(m.dirs) == 0 {
		return fmt.Errorf("uninstall: there is no %s: berth install has installed nothing under %s", m.file, filepath.Join(o.Root, o.Prefix))
	}
	if err := o.idle(ctx); err != nil && !o.Force {
		return err
	}
	if o.Systemctl != nil {
		_, _ = o.Systemctl(ctx, "disable", "berth.service", "berth.socket") // either need not be enabled
	}
	var stays []string
	for _, path := range m.paths() {
		kept, err := o.remove(m, path)
		if err != nil {
			return err
		}
		if kept {
			stays = append(stays, path+", which was changed")
		}
	}
	if err := os.Remove(m.file); err != nil {
		return err
	}
	for _, dir := range slices.Backward(m.dirs) {
		_ = os.Remove(o.on(dir)) // if it is empty
	}
	if o.Systemctl != nil {
		if _, err := o.Systemctl(ctx, "daemon-reload"); err != nil {
			return err
		}
	}
	for _, path := range []string{"/etc/berth", "/var/lib/berth", "/run/berth"} {
		if _, err := os.Stat(o.on(path)); err == nil {
			stays = append(stays, path)
		}
	}
	fmt.Fprintf(o.Out, "berth was removed from %s\n", filepath.Join(o.Root, o.Prefix))
	for _, s := range stays {
		fmt.Fprintln(o.Out, "stays:", s)
	}
	return nil
}

// remove removes a file that an install wrote. It is kept if it was changed.
func (o Options) remove(m *manifest, path string) (kept bool, err error) {
	have, err := wholefile.SumOf(o.on(path))
	if err != nil {
		return false, err
	}
	if err := wholefile.RemoveUnfinished(o.on(path)); err != nil {
		return false, err
	}
	kept = have != "" && !m.wrote(path, have)
	if have != "" && !kept {
		if err := os.Remove(o.on(path)); err != nil {
			return false, err
		}
	}
	delete(m.sums, path)
	return kept, nil
}

func (o Options) check() error {
	if !filepath.IsAbs(o.Prefix) || !filepath.IsAbs(o.Root) {
		return fmt.Errorf("the prefix %q and the root %q have to be absolute paths", o.Prefix, o.Root)
	}
	if strings.ContainsAny(o.Prefix, "\n\"' \t%$\\") {
		return fmt.Errorf("the prefix %q has a character in it that unit files do not take", o.Prefix)
	}
	if o.Root == "/" && os.Geteuid() != 0 {
		return errors.New("berth is installed by root; --root DIR is for anybody, below a directory")
	}
	return nil
}

// on is where a file of the host is for this process.
func (o Options) on(path string) string { return filepath.Join(o.Root, path) }

// installed is the name of the manifest.
const installed = "installed"

func (o Options) manifest() string { return o.on(o.place("share/berth/" + installed)) }

// place is where a file of the archive belongs on the host. systemd looks for units of the host in
// few places.
func (o Options) place(name string) string {
	prefix := filepath.Clean(o.Prefix)
	unit, isUnit := strings.CutPrefix(name, "lib/systemd/system/")
	switch {
	case strings.HasPrefix(name, "etc/"):
		return "/" + name
	case isUnit && prefix != "/usr" && prefix != "/usr/local":
		return "/etc/systemd/system/" + unit
	}
	return filepath.Join(prefix, name)
}

// files reads the list of files to install. An archive that is not as it was built is refused.
func (o Options) files() ([]file, error) {
	text, err := os.ReadFile(filepath.Join(o.From, Files))
	if err != nil {
		return nil, fmt.Errorf("find what there is to install: %w: run ./berth install in an unpacked archive, or name it with --from", err)
	}
	lines, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", Files, err)
	}
	var files []file
	for _, l := range lines {
		source := filepath.Join(o.From, l[1])
		body, err := os.ReadFile(source)
		if err != nil {
			return nil, fmt.Errorf("the archive is not whole: %w: unpack it again", err)
		}
		if wholefile.Sum(body) != l[0] {
			return nil, fmt.Errorf("the archive is damaged: %s is not what %s says: unpack it again", source, Files)
		}
		f := file{path: o.place(l[1]), body: body, mode: 0o644, config: strings.HasPrefix(l[1], "etc/")}
		switch info, err := os.Stat(source); {
		case err != nil:
			return nil, err
		case f.config:
			f.mode = 0o600 // it may have passwords of registries
		case info.Mode()&0o100 != 0:
			f.mode = 0o755
		}
		if strings.HasSuffix(l[1], ".service") {
			f.body = []byte(strings.ReplaceAll(string(body), builtFor, filepath.Clean(o.Prefix)))
		}
		files = append(files, f)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("the archive is not whole: %s is empty", Files)
	}
	return files, nil
}
