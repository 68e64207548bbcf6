// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"berth/internal/base/config"
)

// used returns the settings that a running berth reports.
func used(info map[string]string) (config.Config, bool) {
	var cfg config.Config
	if err := json.Unmarshal([]byte(info["config"]), &cfg); err != nil || cfg.Root == "" || cfg.State == "" {
		return cfg, false // an earlier berth, or another runtime
	}
	return cfg, true
}

// unserved reports whether an error means for certain that a socket is not served.
func unserved(err error) bool { return absent(err) || errors.Is(err, syscall.ECONNREFUSED) }

// service describes whether there was a berth to ask.
func (m *machine) service() string {
	switch {
	case m.runs():
		return "examined: this machine, and the berth that answers on " + m.Endpoint
	case m.Status == nil:
		return "examined: this machine alone, since berth was not to be asked"
	case unserved(m.statusErr):
		return "examined: this machine alone, since no berth runs on " + m.Endpoint
	default:
		return "examined: this machine alone, since berth could not be asked"
	}
}

func askService(_ context.Context, m *machine) ([]Finding, error) {
	var f findings
	switch {
	case m.Status == nil:
		return nil, errNothing("berth was not to be asked")
	case unserved(m.statusErr):
		f.add(Note, "start it with systemctl start berth, or name its socket with --endpoint",
			"no berth runs on %s", m.Endpoint)
	case m.statusErr != nil:
		return nil, m.statusErr
	}
	for _, c := range m.status.GetStatus().GetConditions() {
		if !c.GetStatus() {
			f.add(Error, "see the other findings, and journalctl -u berth", "%s is false: %s", c.GetType(), c.GetMessage())
		}
	}
	info := m.status.GetInfo()
	var warnings []string
	if text := info["warnings"]; text != "" {
		f.unasked(json.Unmarshal([]byte(text), &warnings))
	}
	for _, text := range warnings {
		f.add(Warning, "berth status shows when it is mended", "berth warns: %s", text)
	}
	var version string
	if text := info["version"]; text != "" {
		f.unasked(json.Unmarshal([]byte(text), &version))
	}
	if version != "" && m.Version != "" && version != m.Version {
		f.add(Note, "restart berth to run the one that is installed: pods go on meanwhile",
			"the berth that runs is %s, and this program is %s", version, m.Version)
	}
	return f.result()
}

func askConfiguration(_ context.Context, m *machine) ([]Finding, error) {
	var f findings
	const edit = "correct it; berth config default has every setting, and berth config check checks the file"
	if err := m.cfgErr; err != nil {
		switch {
		case absent(err):
			f.add(Error, "name a file that exists", "there is no configuration %s", m.ConfigFile)
		case errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EIO):
			return nil, m.named(m.ConfigFile, err)
		default:
			text := m.asThere(err)
			f.add(Error, edit, "berth cannot start with %s, and the defaults were examined instead: %s", m.ConfigFile, text)
		}
		return f.result()
	}
	for _, err := range m.loaded.CheckFiles() {
		text := m.asThere(err)
		if what, do, ok := strings.Cut(text, "; "); ok {
			f.add(Warning, do, "%s", what)
		} else {
			f.unasked(err)
		}
	}
	if dir := m.cfg.Image.RegistryDir; dir != "" {
		for _, err := range config.CheckRegistries(m.path(dir)) {
			text := strings.ReplaceAll(err.Error(), m.path(dir), dir)
			f.add(Error, "correct the file; berth reads it for each pull", "pulls from that registry fail: %s", text)
		}
	}
	for _, file := range []struct{ key, path string }{
		{"image.policy_file", m.cfg.Image.PolicyFile},
		{"image.preload_dir", m.cfg.Image.PreloadDir},
	} {
		if file.path == "" {
			continue
		}
		st, err := os.Stat(m.path(file.path))
		switch {
		case absent(err):
			f.add(Error, "put it there, or leave the setting empty", "%s is %s, which does not exist", file.key, file.path)
		case err != nil:
			f.unasked(m.named(file.path, err))
		case st.Mode().Perm()&0o022 != 0:
			f.add(Warning, "run chmod go-w "+file.path, "%s is %s, which has the mode %o: whoever may write to it decides which images run",
				file.key, file.path, st.Mode().Perm())
		}
	}
	return f.result()
}

// asThere is the text of an error about the files of the configuration, named as the machine does.
func (m *machine) asThere(err error) string {
	dir := filepath.Dir(m.ConfigFile)
	return strings.ReplaceAll(err.Error(), m.path(dir)+"/", dir+"/")
}

// libexec returns the directory of berth's programs; "" if they are in none.
func (m *machine) libexec() (string, error) {
	dirs := m.Libexec
	if m.cfg.Libexec != "" {
		dirs = []string{m.cfg.Libexec}
	}
	p, err := m.which("pause", dirs...)
	if p == "" {
		return "", err
	}
	return filepath.Dir(p), nil
}

func askPrograms(_ context.Context, m *machine) ([]Finding, error) {
	var f findings
	dir, err := m.libexec()
	if err != nil {
		return nil, err
	}
	if dir == "" {
		dirs := m.Libexec
		if m.cfg.Libexec != "" {
			dirs = []string{m.cfg.Libexec}
		}
		f.add(Error, "run make install, or set libexec to their directory", "berth's programs are in none of %s: berth cannot start", strings.Join(dirs, ", "))
		return f.result()
	}
	for name, without := range map[string]struct {
		s    Severity
		text string
	}{
		"pause":                   {Error, "a pod that needs a pause process does not start"},
		"containerd-shim-runc-v2": {Error, "no container starts"},
		"berth-logger":            {Warning, "output that containers write while berth is away can be lost"},
	} {
		if m.cfg.Containerd.Address != "" && name == "containerd-shim-runc-v2" || !m.cfg.Tricks.KeepOutput && name == "berth-logger" {
			continue // it is not used
		}
		p := filepath.Join(dir, name)
		ok, err := m.executable(p)
		switch {
		case absent(err):
			f.add(without.s, "run make install", "%s is missing: %s", p, without.text)
		case err != nil:
			f.unasked(err)
		case !ok:
			f.add(without.s, "run chmod 755 "+p, "%s is not executable: %s", p, without.text)
		}
	}
	return f.result()
}
