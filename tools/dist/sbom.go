// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"golang.org/x/mod/module"
)

// program is one of those that are released.
type program struct {
	name string // its path in the tree
	sum  string
	uses []string // the purls of its linked modules
}

// pkg is a package of Debian's of which something is linked in, or released.
type pkg struct{ name, version, arch string }

type parts struct {
	programs []program
	modules  map[string]module.Version // by purl
	debian   map[string]pkg            // by purl
}

// inC are the Debian packages of which something is in the programs that are, in part, C. If a name
// begins so, it is one of those that tools/dist/debian has listed. The others are pure Go.
var inC = map[string][]string{
	"libexec/berth/runc":          {"libc6-dev", "gcc-12", "libseccomp-dev"},
	"libexec/berth/pause":         {"libc6-dev", "gcc-12"},
	"libexec/berth/berth-logger":  {"libc6-dev", "gcc-12"},
	"libexec/berth/berth-exec":    {"libc6-dev", "gcc-12"},
	"libexec/berth/berth-seccomp": {"libc6-dev", "gcc-12", "libseccomp-dev"},
	"share/berth/busybox.tar":     {"busybox-static"},
}

// findParts reads the components of the programs in a tree: Go programs contain their own list.
func findParts(o options) (*parts, error) {
	p := &parts{modules: map[string]module.Version{}, debian: map[string]pkg{}}
	list, err := os.ReadFile(filepath.Join(o.debian, "packages"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(list)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			return nil, fmt.Errorf("%q is not a package of Debian's", line)
		}
		p.debian[fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", f[0], strings.ReplaceAll(f[1], ":", "%3A"), f[2])] = pkg{f[0], f[1], f[2]}
	}
	err = filepath.WalkDir(o.out, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, _ := filepath.Rel(o.out, file)
		if !strings.HasPrefix(rel, "bin/") && !strings.HasPrefix(rel, "libexec/") && inC[rel] == nil {
			return nil
		}
		sum, err := sumOf(file)
		if err != nil {
			return err
		}
		pr := program{name: rel, sum: sum}
		for _, name := range inC[rel] {
			found := false
			for purl, d := range p.debian {
				if strings.HasPrefix(d.name, name) {
					pr.uses, found = append(pr.uses, purl), true
				}
			}
			if !found {
				return fmt.Errorf("%s has something of %s in it, and %s/packages does not list that", rel, name, o.debian)
			}
		}
		info, err := buildinfo.ReadFile(file)
		switch {
		case err == nil:
			mods := []module.Version{{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}}
			for _, dep := range info.Deps {
				if dep.Replace != nil {
					dep = dep.Replace
				}
				mods = append(mods, module.Version{Path: dep.Path, Version: dep.Version})
			}
			for _, m := range mods {
				purl := "pkg:golang/" + m.Path + "@" + m.Version
				p.modules[purl] = m
				pr.uses = append(pr.uses, purl)
			}
		case inC[rel] == nil:
			return fmt.Errorf("read what %s consists of: %w", rel, err)
		}
		slices.Sort(pr.uses)
		p.programs = append(p.programs, pr)
		return nil
	})
	return p, err
}

func sorted[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// sbom writes the parts in CycloneDX. It has no serial number: a release that is built twice has
// the same.
func (p *parts) sbom(o options) ([]byte, error) {
	bom := cdx.NewBOM()
	root := cdx.Component{
		Type:       cdx.ComponentTypeApplication,
		BOMRef:     "pkg:generic/berth@" + o.version,
		PackageURL: "pkg:generic/berth@" + o.version,
		Name:       "berth",
		Version:    o.version,
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}
	bom.Metadata = &cdx.Metadata{Timestamp: o.time().Format("2006-01-02T15:04:05Z"), Component: &root}
	var components []cdx.Component
	var all []string
	dependencies := []cdx.Dependency{{Ref: root.BOMRef, Dependencies: &all}}
	for _, pr := range p.programs {
		ref := "file:" + pr.name
		components = append(components, cdx.Component{
			Type:    cdx.ComponentTypeApplication,
			BOMRef:  ref,
			Name:    path.Base(pr.name),
			Version: o.version,
			Hashes:  &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: pr.sum}},
		})
		all = append(all, ref)
		dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &pr.uses})
	}
	for _, purl := range sorted(p.modules) {
		m := p.modules[purl]
		components = append(components, cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: purl, PackageURL: purl, Name: m.Path, Version: m.Version})
	}
	for _, purl := range sorted(p.debian) {
		d := p.debian[purl]
		components = append(components, cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: purl, PackageURL: purl, Name: d.name, Version: d.version})
	}
	bom.Components, bom.Dependencies = &components, &dependencies
	var b bytes.Buffer
	err := cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	return b.Bytes(), err
}

// licences writes the licences of all that is linked in. A text that several have is there once.
func (p *parts) licences(o options) ([]byte, error) {
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		return nil, err
	}
	of := map[string][]string{} // the names of those that have a text
	var errs []error
	add := func(name string, files []string) {
		if len(files) == 0 {
			errs = append(errs, fmt.Errorf("there is no licence of %s", name))
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			errs = append(errs, err)
			of[string(b)] = append(of[string(b)], name+" ("+filepath.Base(f)+")")
		}
	}
	for _, purl := range sorted(p.modules) {
		m := p.modules[purl]
		if m.Path == "std" {
			add("Go "+m.Version, []string{filepath.Join(runtime.GOROOT(), "LICENSE")})
			continue
		}
		escaped, err := module.EscapePath(m.Path)
		if err != nil {
			return nil, err
		}
		add(m.Path+" "+m.Version, texts(filepath.Join(strings.TrimSpace(string(cache)), escaped+"@"+m.Version)))
	}
	for _, purl := range sorted(p.debian) {
		d := p.debian[purl]
		files, _ := filepath.Glob(filepath.Join(o.debian, "usr/share/doc", d.name, "copyright"))
		add("Debian's package "+d.name+" "+d.version+", whose source is at https://snapshot.debian.org", files)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var sections []string
	for text, names := range of {
		sections = append(sections, strings.Join(names, "\n")+"\n\n"+strings.TrimSpace(text)+"\n")
	}
	slices.Sort(sections)
	head := "berth is under the licence in the file LICENSE. Its programs have the following in them.\n"
	return []byte(head + strings.Join(append([]string{""}, sections...), "\n"+strings.Repeat("=", 100)+"\n\n")), nil
}

// texts are the files of a module that are licences or notices.
func texts(dir string) []string {
	entries, _ := os.ReadDir(dir)
	var files []string
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		for _, prefix := range []string{"LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"} {
			if strings.HasPrefix(name, prefix) && e.Type().IsRegular() && !strings.HasSuffix(name, ".GO") {
				files = append(files, filepath.Join(dir, e.Name()))
			}
		}
	}
	return files
}
