// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/version"
)

// netConf is the used part of a CNI configuration, a list or a single plug-in.
type netConf struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	Plugins    []struct {
		Type string          `json:"type"`
		IPAM json.RawMessage `json:"ipam"`
	} `json:"plugins"`
	IPAM json.RawMessage `json:"ipam"`
}

// types returns the plug-ins that a configuration calls, with those of IPAM.
func (c netConf) types() (all []string) {
	add := func(kind string, ipam json.RawMessage) {
		var i struct {
			Type string `json:"type"`
		}
		_ = json.Unmarshal(ipam, &i) // absent for most
		for _, name := range []string{kind, i.Type} {
			if name != "" && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	add(c.Type, c.IPAM)
	for _, p := range c.Plugins {
		add(p.Type, p.IPAM)
	}
	return all
}

// confFiles returns the files of a directory that may be CNI configurations, in the order in which
// berth tries them.
func (m *machine) confFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(m.path(dir))
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, m.named(dir, err)
	}
	var files []string
	for _, e := range entries {
		if slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) && !e.IsDir() {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, nil
}

// conf reads a configuration. wrong is the reason if berth does not use it.
func (m *machine) conf(file string) (c netConf, wrong string, err error) {
	text, err := m.read(file)
	if err != nil {
		return c, "", err
	}
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return c, fmt.Sprintf("it is not valid JSON: %v", err), nil
	}
	list := filepath.Ext(file) == ".conflist"
	switch {
	case c.Name == "":
		return c, "it has no name", nil
	case list && len(c.Plugins) == 0:
		return c, "it has no plugins", nil
	case !list && c.Type == "":
		return c, "it has no type: a list belongs into a .conflist file", nil
	case c.CNIVersion != "" && !slices.Contains(version.All.SupportedVersions(), c.CNIVersion):
		return c, fmt.Sprintf("its cniVersion %s is none of those that berth speaks, %s", c.CNIVersion, strings.Join(version.All.SupportedVersions(), ", ")), nil
	}
	return c, "", nil
}

// binDirs are the directories that plug-ins are looked for in.
func (m *machine) binDirs() []string {
	dirs := slices.Clone(m.cfg.Network.BinDirs)
	// without them the check of programs has a finding
	if dir, err := m.libexec(); err == nil && dir != "" {
		dirs = append(dirs, filepath.Join(dir, "cni"), filepath.Join(dir, "../cni"))
	}
	var all []string
	for _, dir := range append(dirs, m.CNIDirs...) {
		if dir = filepath.Clean(dir); !slices.Contains(all, dir) {
			all = append(all, dir)
		}
	}
	return all
}

// badPlugins describes plug-ins of a configuration that cannot be run, and gives the remedy.
func (m *machine) badPlugins(types []string) (wrong, do string, err error) {
	for _, name := range types {
		p, err := m.which(name, m.binDirs()...)
		if err != nil {
			return "", "", err
		}
		if p == "" {
			return fmt.Sprintf("the CNI plug-in %s is in none of %s", name, strings.Join(m.binDirs(), ", ")),
				"install it there (containernetworking-plugins, or what your network provider has), or add its directory to network.bin_dirs", nil
		}
		ok, err := m.executable(p)
		if err != nil {
			return "", "", err
		}
		if !ok {
			return fmt.Sprintf("the CNI plug-in %s is not executable", p), "run chmod 755 " + p, nil
		}
	}
	return "", "", nil
}

// chosen returns the configuration that berth uses. The findings describe the faults of those
// before it. ok is false if there is none.
func (m *machine) chosen(dir string, f *findings) (c netConf, ok bool, err error) {
	files, err := m.confFiles(dir)
	if err != nil {
		return c, false, err
	}
	type problem struct{ file, wrong, do string }
	var skipped []problem
	for _, file := range files {
		c, wrong, err := m.conf(file)
		if err != nil {
			return c, false, err
		}
		do := "correct it, or remove it"
		if wrong == "" {
			if wrong, do, err = m.badPlugins(c.types()); err != nil {
				return c, false, err
			}
		}
		if wrong == "" {
			for _, p := range skipped {
				f.add(Warning, p.do, "%s is skipped, and %s is used instead: %s", p.file, file, p.wrong)
			}
			return c, true, nil
		}
		skipped = append(skipped, problem{file, wrong, do})
	}
	for _, p := range skipped {
		f.add(Error, p.do, "%s cannot be used: %s", p.file, p.wrong)
	}
	return netConf{}, false, nil
}

func askCNI(_ context.Context, m *machine) ([]Finding, error) {
	var f findings
	n := m.cfg.Network
	_, ok, err := m.chosen(n.ConfDir, &f)
	if err != nil {
		return nil, err
	}
	switch {
	case ok:
	case !n.UseDefault:
		if len(f.found) == 0 {
			f.add(Error, "install the network provider of the cluster, or set network.use_default to true",
				"there is no CNI configuration in %s, and network.use_default is false: pods have no network", n.ConfDir)
		}
	default:
		wrong, do, err := m.badPlugins([]string{"bridge", "host-local", "portmap", "loopback"})
		f.unasked(err)
		if wrong != "" {
			f.add(Error, do, "there is no CNI configuration that can be used in %s, and berth's own bridge cannot be either: %s", n.ConfDir, wrong)
		} else if kubelet, err := m.exists(m.KubeletConfig); kubelet && err == nil {
			f.add(Warning, "install the network provider of the cluster",
				"there is no CNI configuration that can be used in %s: pods are on the bridge %s, which other nodes do not reach", n.ConfDir, n.DefaultBridge)
		}
	}
	for name, r := range m.cfg.Runtimes {
		if r.CNIConfDir == "" {
			continue
		}
		_, ok, err := m.chosen(r.CNIConfDir, &f)
		f.unasked(err)
		if !ok && err == nil {
			f.add(Error, "put one there, or leave the setting empty", "runtimes.%s.cni_conf_dir is %s, where no configuration can be used: the pods of that handler are refused", name, r.CNIConfDir)
		}
	}
	return f.result()
}

// bridged reports whether the pods are on a bridge of this host.
func (m *machine) bridged() (bool, error) {
	c, ok, err := m.chosen(m.cfg.Network.ConfDir, &findings{})
	if err != nil {
		return false, err
	}
	return ok && slices.Contains(c.types(), "bridge") || !ok && m.cfg.Network.UseDefault, nil
}
