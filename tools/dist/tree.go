// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
)

// item is one line of the list of berth's files. Everything that installs berth has it from this
// list: the archive, berth install, make install, and the packages.
type item struct {
	// in the source, or below BUILD/; a pattern of names of files, or with a slash of directories
	from string
	to   string // a directory in the tree
	mode fs.FileMode
}

var items = []item{
	{"BUILD/bin/berth", "bin", 0o755},
	{"BUILD/libexec/containerd-shim-runc-v2", "libexec/berth", 0o755},
	{"BUILD/libexec/runc", "libexec/berth", 0o755},
	{"BUILD/libexec/pause", "libexec/berth", 0o755},
	{"BUILD/libexec/berth-logger", "libexec/berth", 0o755},
	{"BUILD/libexec/berth-exec", "libexec/berth", 0o755},
	{"BUILD/libexec/berth-seccomp", "libexec/berth", 0o755},
	{"BUILD/cni/*", "libexec/berth/cni", 0o755},
	{"BUILD/share/berth/busybox.tar", "share/berth", 0o644},
	{"contrib/berth.service", "lib/systemd/system", 0o644},
	{"contrib/berth.socket", "lib/systemd/system", 0o644},
	{"contrib/config.toml", "etc/berth", 0o600},
	{"contrib/*/", "share/doc/berth/contrib", 0o644},
	{"LICENSE", "share/doc/berth", 0o644},
	{"*.md", "share/doc/berth", 0o644},
	{"docs/", "share/doc/berth", 0o644},
}

// makeTree makes the tree of files to install, and its list.
func makeTree(o options) error {
	if err := os.RemoveAll(o.out); err != nil {
		return err
	}
	for _, it := range items {
		from, dirs := strings.CutSuffix(strings.Replace(it.from, "BUILD", o.build, 1), "/")
		paths, err := filepath.Glob(from)
		if err != nil || len(paths) == 0 {
			return fmt.Errorf("there is no %s %v", from, err)
		}
		for _, path := range paths {
			if err := o.copy(path, it, dirs); err != nil {
				return err
			}
		}
	}
	man := filepath.Join(o.out, "share/man/man8")
	if out, err := exec.Command(o.berth, "man", man).CombinedOutput(); err != nil {
		return fmt.Errorf("berth man: %w: %s", err, out)
	}
	for shell, name := range map[string]string{
		"bash": "share/bash-completion/completions/berth",
		"zsh":  "share/zsh/site-functions/_berth",
		"fish": "share/fish/vendor_completions.d/berth.fish",
	} {
		body, err := exec.Command(o.berth, "completion", shell).Output()
		if err != nil {
			return fmt.Errorf("berth completion %s: %w", shell, err)
		}
		if err := o.put(name, body, 0o644); err != nil {
			return err
		}
	}
	return list(o.out)
}

// copy copies a file, or the directories or the files below a directory.
func (o options) copy(path string, it item, dirs bool) error {
	return filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case p == path && d.IsDir() != dirs:
			return fs.SkipDir // of a file: the rest, which there is none of
		case d.IsDir():
			return nil
		}
		body, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(filepath.Dir(path), p)
		if err != nil {
			return err
		}
		return o.put(filepath.Join(it.to, rel), body, it.mode)
	})
}

// put writes a file of the tree.
func (o options) put(name string, body []byte, mode fs.FileMode) error {
	path := filepath.Join(o.out, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, body, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode) // regardless of the umask
}

// list writes FILES, which names all the files of a tree with their sums, for berth install and
// sha256sum -c.
func list(dir string) error {
	const name = "FILES"
	var lines []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, path)
		if err != nil || !d.Type().IsRegular() || rel == name {
			return err
		}
		sum, err := sumOf(path)
		lines = append(lines, rel+"\x00"+sum)
		return err
	})
	if err != nil {
		return err
	}
	sort.Strings(lines)
	var b bytes.Buffer
	for _, l := range lines {
		rel, sum, _ := strings.Cut(l, "\x00")
		fmt.Fprintf(&b, "%s  %s\n", sum, rel)
	}
	return os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o644)
}

func sumOf(path string) (string, error) {
	b, err := os.ReadFile(path)
	return fmt.Sprintf("%x", sha256.Sum256(b)), err
}
