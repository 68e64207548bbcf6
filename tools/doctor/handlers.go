// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	ocifeatures "github.com/opencontainers/runtime-spec/specs-go/features"

	"berth/internal/base/config"
	"berth/internal/engine/probe"
)

func askHandlers(ctx context.Context, m *machine) ([]Finding, error) {
	var f findings
	for _, name := range slices.Sorted(maps.Keys(m.cfg.Runtimes)) {
		r := m.cfg.Runtimes[name]
		if r.SystemdCgroup {
			if there, err := m.exists("/run/systemd/system"); err != nil {
				f.unasked(err)
			} else if !there {
				f.add(Error, fmt.Sprintf("set runtimes.%s.systemd_cgroup to false, and cgroupDriver: cgroupfs in the kubelet's configuration", name),
					"runtimes.%s.systemd_cgroup is set, and systemd does not run here: no container of that handler starts", name)
			}
		}
		switch {
		case r.IsRunc():
			m.askRunc(ctx, &f, name, r)
		case filepath.IsAbs(r.Type):
			m.runnable(&f, r.Type, "the shim of the handler "+name)
		}
	}
	m.askFaster(ctx, &f)
	for _, name := range slices.Sorted(maps.Keys(m.cfg.Snapshotters)) {
		address := m.cfg.Snapshotters[name].Address
		if err := reach(ctx, m.path(address)); err != nil {
			f.add(Error, "start it, or correct snapshotters."+name+".address", "the snapshotter %s does not answer at %s: no container is made from its layers", name, address)
		}
	}
	return f.result()
}

// askFaster tells of a crun that no handler uses, although it would start containers sooner than
// runc. It starts none where both versions of cgroups are mounted.
func (m *machine) askFaster(ctx context.Context, f *findings) {
	for _, r := range m.cfg.Runtimes {
		if filepath.Base(r.Binary) == "crun" {
			return
		}
	}
	v2, err := m.exists("/sys/fs/cgroup/cgroup.controllers")
	f.unasked(err)
	p, err := m.which("crun", searchPath...)
	f.unasked(err)
	if !v2 || p == "" {
		return
	}
	out, err := m.Runs(ctx, m.path(p), "--version")
	f.unasked(err)
	var major, minor int
	if n, _ := fmt.Sscanf(string(out), "crun version %d.%d", &major, &minor); n == 2 && (major > 1 || minor >= testedCrun) {
		f.add(Note, "configure a handler with it: docs/runtimes.md", "%s is crun %d.%d, which starts containers sooner than runc, and no handler uses it", p, major, minor)
	}
}

// testedCrun is the oldest crun 1 that berth's tests run.
const testedCrun = 21

// runnable finds whether a program is there and may be executed.
func (m *machine) runnable(f *findings, p, what string) bool {
	ok, err := m.executable(p)
	switch {
	case absent(err):
		f.add(Error, "install it, or correct its path in the configuration", "%s, %s, is missing: its containers do not start", p, what)
	case err != nil:
		f.unasked(err)
	case !ok:
		f.add(Error, "run chmod 755 "+p, "%s, %s, is not executable: its containers do not start", p, what)
	}
	return ok && err == nil
}

// askRunc looks for the OCI runtime of a handler, and asks it for its version and its features.
func (m *machine) askRunc(ctx context.Context, f *findings, name string, r config.Runtime) {
	what := "the OCI runtime of the handler " + name
	p := r.Binary
	if !filepath.IsAbs(p) {
		dir, err := m.libexec()
		if err != nil {
			f.unasked(err)
			return
		}
		word := p
		if word == "" {
			word = "runc"
		}
		if dir == "" && m.cfg.Containerd.Address == "" {
			return // berth cannot start, as the check of programs reports
		}
		dirs := searchPath
		if dir != "" {
			dirs = append([]string{dir}, searchPath...)
		}
		if p, err = m.which(word, dirs...); err != nil {
			f.unasked(err)
			return
		}
		if p == "" {
			f.add(Error, "run make install, or set runtimes."+name+".binary", "%s, %s, is in none of %s: its containers do not start", word, what, strings.Join(dirs, ", "))
			return
		}
	}
	if !m.runnable(f, p, what) {
		return
	}
	out, err := m.Runs(ctx, m.path(p), "--version")
	f.unasked(err)
	if v, holes, fixed := probe.Holes(out); err == nil && holes != "" {
		f.add(Error, "install "+fixed, "%s, %s, is runc %s, out of which containers can break (%s)", p, what, v, holes)
	}
	if out, err = m.Runs(ctx, m.path(p), "features"); err != nil {
		f.unasked(err)
		return
	}
	var has ocifeatures.Features
	if err := json.Unmarshal(out, &has); err != nil {
		f.unasked(fmt.Errorf("read the features of %s: %w", p, err))
		return
	}
	m.askFeatures(f, p, name, r, &has)
}

// askFeatures reports features that an OCI runtime was built without.
func (m *machine) askFeatures(f *findings, p, name string, r config.Runtime, has *ocifeatures.Features) {
	l := has.Linux
	if l == nil {
		return
	}
	off := func(b *bool) bool { return b != nil && !*b }
	if l.Seccomp != nil && off(l.Seccomp.Enabled) {
		f.add(Error, "install one that is built with libseccomp", "%s has no seccomp: containers of the handler %s with a profile do not start, and RuntimeDefault is one", p, name)
	}
	if l.Cgroup != nil && r.SystemdCgroup && off(l.Cgroup.Systemd) {
		f.add(Error, "install one that has it, or set runtimes."+name+".systemd_cgroup to false", "%s cannot let systemd make cgroups, which runtimes.%s.systemd_cgroup asks for", p, name)
	}
	if l.MountExtensions == nil || l.MountExtensions.IDMap == nil || off(l.MountExtensions.IDMap.Enabled) {
		f.add(Warning, "install runc 1.2 or crun 1.9, or a newer one", "%s cannot mount with mapped owners: pods of the handler %s with hostUsers: false are refused", p, name)
	}
	if !slices.Contains(has.MountOptions, "rro") {
		f.add(Warning, "install runc 1.1 or crun 1.4, or a newer one", "%s cannot mount read-only recursively: pods of the handler %s that ask for it are refused", p, name)
	}
}
