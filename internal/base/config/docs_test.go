// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// blocks returns the blocks of a language in a document.
func blocks(t *testing.T, file, language string) (all []string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(string(b), -1) {
		all = append(all, m[1])
	}
	return all
}

// match returns the files of the repository that match a pattern.
func match(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../../..", pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no file is %s: %v", pattern, err)
	}
	return files
}

// What the documents tell people to write is read and checked: as the configuration file, and as a
// drop-in file, which it may be as well.
func TestTheSettingsInDocumentsAreValid(t *testing.T) {
	n := 0
	for _, file := range append(match(t, "docs/*.md"), match(t, "README.md")...) {
		if filepath.Base(file) == "policy.md" { // its blocks are of another file
			continue
		}
		for _, text := range blocks(t, file, "toml") {
			n++
			l, _, err := dropped(t, "", map[string]string{"10.toml": text})
			if err == nil {
				err = l.Check()
			}
			if err != nil && !strings.Contains(err.Error(), "is containerd.link") { // the text says to change that, too
				t.Errorf("%s has\n%s%v", file, text, err)
			}
		}
	}
	if n < 5 {
		t.Errorf("only %d blocks were found", n)
	}
}

// Each drop-in file of contrib is valid by itself, and so are those for one cluster with those for
// agents.
func TestTheDropInFilesOfContribAreValid(t *testing.T) {
	files := match(t, "contrib/conf.d/*.toml")
	main, err := os.ReadFile("../../../contrib/config.toml")
	if err != nil {
		t.Fatal(err)
	}
	agents, err := os.ReadFile("../../../contrib/conf.d/20-agents.toml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		l, _, err := dropped(t, string(main), map[string]string{filepath.Base(file): string(b), "20-agents.toml": string(agents)})
		if err == nil {
			err = l.Check()
		}
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if l.CRI.RuntimeName != "cri-o" || l.Runtimes["runc"].Type == "" {
			t.Errorf("%s: got %+v", file, l.Config)
		}
	}
}

// The files for other programs are YAML, and name the socket that berth has by default.
func TestTheFilesForOtherProgramsNameTheSocket(t *testing.T) {
	texts := blocks(t, "../../../docs/clusters.md", "yaml")
	for _, file := range []string{"../../../contrib/kind/cluster.yaml", "../../../contrib/ansible/berth.yml"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(b))
	}
	for _, text := range texts {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
		if !strings.Contains(text, "unix://"+Default().Address) {
			t.Errorf("there is no socket in\n%s", text)
		}
	}
	if len(texts) < 5 {
		t.Errorf("only %d files were found", len(texts))
	}
}
