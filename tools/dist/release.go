// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// release makes the archive, the packages and the SBOM of an architecture.
func release(o options) error {
	if err := o.versioned(); err != nil {
		return err
	}
	result, err := filepath.Abs(o.out)
	if err != nil {
		return err
	}
	name := "berth-" + o.version + "-" + o.platform
	work := filepath.Join(o.build, "release")
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	tree := o
	tree.out = filepath.Join(work, name)
	if err := makeTree(tree); err != nil {
		return err
	}
	parts, err := findParts(tree)
	if err != nil {
		return err
	}
	sbom, err := parts.sbom(o)
	if err != nil {
		return err
	}
	licences, err := parts.licences(o)
	if err != nil {
		return err
	}
	guide, err := os.ReadFile("docs/install.md")
	if err != nil {
		return err
	}
	if err := tree.put("share/doc/berth/sbom.cdx.json", sbom, 0o644); err != nil {
		return err
	}
	if err := tree.put("share/doc/berth/THIRD-PARTY.txt", licences, 0o644); err != nil {
		return err
	}
	if err := list(tree.out); err != nil {
		return err
	}
	// For those who unpack it: these are not installed.
	for file, body := range map[string][]byte{"INSTALL.md": guide, "LICENSE": nil} {
		if body == nil {
			if body, err = os.ReadFile(file); err != nil {
				return err
			}
		}
		if err := tree.put(file, body, 0o644); err != nil {
			return err
		}
	}
	if err := os.Symlink("bin/berth", filepath.Join(tree.out, "berth")); err != nil {
		return err
	}
	if err := os.MkdirAll(result, 0o755); err != nil {
		return err
	}
	if err := archive(tree.out, filepath.Join(result, name+".tar.gz"), o); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(result, name+".cdx.json"), sbom, 0o644); err != nil {
		return err
	}
	return packages(o, tree.out, filepath.Join(work, "package"), result)
}

// archive writes a directory as a tar file whose entries are sorted, of root, and of one time.
func archive(dir, path string, o options) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	z := gzip.NewWriter(f) // its header has neither a name nor a time
	w := tar.NewWriter(z)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error { // in lexical order
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(filepath.Dir(dir), path)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: rel, ModTime: o.time(), Uname: "root", Gname: "root", Format: tar.FormatPAX}
		switch {
		case d.IsDir():
			h.Typeflag, h.Name, h.Mode = tar.TypeDir, rel+"/", 0o755
			return w.WriteHeader(h)
		case d.Type()&fs.ModeSymlink != 0:
			h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
			if h.Linkname, err = os.Readlink(path); err != nil {
				return err
			}
			return w.WriteHeader(h)
		}
		h.Typeflag, h.Mode, h.Size = tar.TypeReg, int64(info.Mode().Perm()), info.Size()
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		in, err := os.Open(path)
		if err != nil {
			return err
		}
		defer in.Close()
		_, err = io.Copy(w, in)
		return err
	})
	if err != nil {
		return err
	}
	for _, c := range []io.Closer{w, z, f} {
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}

var (
	//go:embed packages/postinst
	postinst []byte
	//go:embed packages/prerm
	prerm []byte
	//go:embed packages/postrm
	postrm []byte
)

// packages makes a .deb and an .rpm of the files that berth install puts under /usr.
func packages(o options, tree, work, result string) error {
	root := filepath.Join(work, "root")
	if out, err := exec.Command(o.berth, "install", "--from", tree, "--root", root, "--prefix", "/usr").CombinedOutput(); err != nil {
		return fmt.Errorf("berth install: %w: %s", err, out)
	}
	// dpkg and rpm have their own
	if err := os.Remove(filepath.Join(root, "usr/share/berth/installed")); err != nil {
		return err
	}
	for name, body := range map[string][]byte{"postinst": postinst, "prerm": prerm, "postrm": postrm} {
		if err := os.WriteFile(filepath.Join(work, name), body, 0o755); err != nil {
			return err
		}
	}
	type object = map[string]any
	config := filepath.Join(work, "nfpm.json") // JSON is YAML
	body, err := json.MarshalIndent(object{
		"name":           "berth",
		"arch":           o.arch,
		"platform":       "linux",
		"version":        o.version,
		"version_schema": "semver",
		"release":        "1",
		"section":        "admin",
		"priority":       "optional",
		"maintainer":     "The berth authors <root@localhost>",
		"description":    "Container runtime service for Kubernetes nodes\nberth serves the Container Runtime Interface (CRI v1) with containerd and runc inside.",
		"license":        "Apache-2.0",
		"mtime":          o.time().Format("2006-01-02T15:04:05Z"),
		"recommends":     []string{"iptables"},
		"overrides": object{ // the packages that have igzip
			"deb": object{"recommends": []string{"iptables", "isal"}},
			"rpm": object{"recommends": []string{"iptables", "isa-l-tools"}},
		},
		"contents": []object{
			{"src": filepath.Join(root, "usr"), "dst": "/usr", "type": "tree"},
			{"src": filepath.Join(root, "etc/berth/config.toml"), "dst": "/etc/berth/config.toml", "type": "config|noreplace", "file_info": object{"mode": 0o600}},
		},
		"scripts": object{
			"postinstall": filepath.Join(work, "postinst"),
			"preremove":   filepath.Join(work, "prerm"),
			"postremove":  filepath.Join(work, "postrm"),
		},
		"rpm": object{"buildhost": "localhost", "compression": "gzip"},
		"deb": object{"compression": "gzip"},
	}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(config, body, 0o644); err != nil {
		return err
	}
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[o.arch]
	for kind, name := range map[string]string{
		"deb": "berth_" + o.version + "_" + o.arch + ".deb",
		"rpm": "berth-" + o.version + "." + machine + ".rpm",
	} {
		cmd := exec.Command(o.nfpm, "package", "--config", config, "--packager", kind, "--target", filepath.Join(result, name))
		cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+strconv.FormatInt(o.epoch, 10))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nfpm: %w: %s", err, bytes.TrimSpace(out))
		}
	}
	return nil
}
