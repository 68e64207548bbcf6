// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Page is the content of docs/conformance.md.
type Page struct {
	Made    time.Time
	Berth   string // version
	Critest string // version; "" if there is none
	Images  string // where they came from, as a sentence
	Kernel  string
	Cores   int
	GiB     int
	Results []Result
	Fields  Fields
	Promises
	Suite string // the section about Kubernetes' own suite, which is written by hand
	Soak  string // the last lines of the last soak; "" if there is none
}

// Fields are the rows of docs/cri-fields.md.
type Fields struct{ Honoured, Refused, NoEffect int }

// Promises are the figures of docs/PROPERTIES.md.
type Promises struct {
	Count int
	Tests map[int]int // listed tests of each
}

// fields counts the rows of docs/cri-fields.md by the treatment of the field.
func fields(module string) (f Fields, err error) {
	b, err := os.ReadFile(filepath.Join(module, "docs/cri-fields.md"))
	if err != nil {
		return f, err
	}
	for line := range strings.Lines(string(b)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		switch what := strings.TrimSpace(cells[2]); {
		case strings.HasPrefix(what, "honoured"):
			f.Honoured++
		case strings.HasPrefix(what, "**refused**"):
			f.Refused++
		case strings.HasPrefix(what, "**no effect**"):
			f.NoEffect++
		}
	}
	if f.Honoured == 0 {
		return f, fmt.Errorf("docs/cri-fields.md has no field that is honoured: its form has changed")
	}
	return f, nil
}

// promises counts the promises of docs/PROPERTIES.md and the tests that are listed for each.
func promises(module string) (p Promises, err error) {
	b, err := os.ReadFile(filepath.Join(module, "docs/PROPERTIES.md"))
	if err != nil {
		return p, err
	}
	text := string(b)
	p.Tests = map[int]int{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \| \*\*`).FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[1])
		p.Tests[n] = 0
	}
	p.Count = len(p.Tests)
	_, list, _ := strings.Cut(text, "\n## The tests of each promise\n")
	n := 0
	for line := range strings.Lines(list) {
		if m := regexp.MustCompile(`^- (\d+): `).FindStringSubmatch(line); m != nil {
			n, _ = strconv.Atoi(m[1])
		}
		if _, ok := p.Tests[n]; ok {
			p.Tests[n] += len(regexp.MustCompile("`[a-z0-9]+\\.(Test|Fuzz)\\w+`").FindAllString(line, -1))
		}
	}
	if p.Count == 0 {
		return p, fmt.Errorf("docs/PROPERTIES.md has no promise: its form has changed")
	}
	return p, nil
}

// ofSuite is the heading of the section of the page that stays as it is.
const ofSuite = "## Kubernetes' own suite\n"

// kept returns the section of the page that is written by hand, from the page as it was.
func kept(page string) (string, error) {
	b, err := os.ReadFile(page)
	if err != nil && !os.IsNotExist(err) {
		return "", err
	}
	_, section, found := strings.Cut(string(b), ofSuite)
	section, _, _ = strings.Cut(section, "\n## ")
	if !found {
		return "**Not run.**", nil
	}
	return strings.TrimSpace(section), nil
}

// soak returns the last result of a soak, from its output: the verdict of each test and its
// figures, and "" if there is no such file.
func soak(file string) (string, error) {
	b, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var kept []string
	figures := false
	for line := range strings.Lines(string(b)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.Contains(line, "figures:"):
			figures = true
		case strings.HasPrefix(strings.TrimSpace(line), "---"):
			figures = false
			kept = append(kept, strings.TrimSpace(line))
		case figures && strings.HasPrefix(line, "        "):
			kept = append(kept, strings.TrimSpace(line))
		default:
			figures = false
		}
	}
	if len(kept) == 0 {
		return "", fmt.Errorf("%s has no verdict of a soak", file)
	}
	return strings.Join(kept, "\n"), nil
}

// wrap breaks a paragraph into lines of at most 100 characters, and ends it.
func wrap(text string) string {
	var b strings.Builder
	at := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case at == 0:
		case at+1+len(word) > 100:
			b.WriteByte('\n')
			at = 0
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += len(word)
	}
	return b.String() + "\n"
}

// write writes the page.
func (p Page) write(w io.Writer) error {
	var b strings.Builder
	out := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say := func(format string, args ...any) { fmt.Fprintln(&b, wrap(fmt.Sprintf(format, args...))) }
	out("# Conformance\n")
	say("Made by `make conformance` on %s, and not edited except for [Kubernetes' own suite](#kubernetes-own-suite): berth %s, Linux %s, a machine of %d cores and %d GiB. Run it to have these figures of your machine.",
		p.Made.UTC().Format("2006-01-02"), p.Berth, p.Kernel, p.Cores, p.GiB)
	out("## critest\n")
	say("[critest](https://github.com/kubernetes-sigs/cri-tools), the suite of the CRI (%s), with each runtime on that machine, one after the other. What critest skips is not passed: the reasons are below. What it does not select is what its flags or its labels leave out, such as its benchmarks. %s", cmp.Or(p.Critest, "not in PATH"), p.Images)
	out("| runtime | version | passed | failed | skipped | not selected | took |")
	out("| --- | --- | --- | --- | --- | --- | --- |")
	for _, r := range p.Results {
		if r.NotRun != "" {
			out("| %s | %s | **not run** | | | | %s |", r.Runtime, r.Version, r.NotRun)
			continue
		}
		out("| %s | %s | %d | %d | %d | %d | %s |", r.Runtime, r.Version, r.Passed, r.Failed, r.Skipped, r.Unselected, r.Took.Round(time.Second))
	}
	for _, r := range p.Results {
		if len(r.Failures)+len(r.Reasons) == 0 {
			continue
		}
		out("\n### %s\n", r.Runtime)
		for _, name := range r.Failures {
			out("- failed: %s", name)
		}
		for _, reason := range slices.Sorted(maps.Keys(r.Reasons)) {
			out("- skipped, %d: %s", r.Reasons[reason], reason)
		}
	}
	out("\n%s\n%s", ofSuite, p.Suite)
	f := p.Fields
	out("\n## Fields of CRI\n")
	say("Of the %d fields of CRI's requests %d are honoured, %d refused with an error that names them, and %d have no effect for a reason that is stated: [cri-fields.md](cri-fields.md), which the tests of `test/surface` compare with the protocol.",
		f.Honoured+f.Refused+f.NoEffect, f.Honoured, f.Refused, f.NoEffect)
	out("## Promises\n")
	total := 0
	for _, n := range p.Tests {
		total += n
	}
	say("[PROPERTIES.md](PROPERTIES.md) has %d promises with %d tests that are listed for them. They are run by `make test` and its like, and not by `make conformance`.", p.Count, total)
	out("| promise | listed tests |\n| --- | --- |")
	for _, n := range slices.Sorted(maps.Keys(p.Tests)) {
		out("| %d | %d |", n, p.Tests[n])
	}
	out("\n## Soak\n")
	if p.Soak == "" {
		out("**Not run**: there is no result of `make soak` in build/.")
	} else {
		out("The last `make soak` in this tree:\n\n```\n%s\n```", p.Soak)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
