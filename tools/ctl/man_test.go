// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// pages writes the manual, and returns its pages by their names.
func pages(t *testing.T) map[string][]byte {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "man8")
	if _, problem := berth(t, "/s", "man", dir); problem != "" {
		t.Fatal(problem)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, f := range files {
		if all[filepath.Base(f)], err = os.ReadFile(f); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func TestEachCommandHasAPage(t *testing.T) {
	all := pages(t)
	root := app{}.root()
	root.InitDefaultCompletionCmd()
	count := 0
	everyCommand(root, func(c *cobra.Command) {
		if c != root && !c.IsAvailableCommand() {
			return
		}
		count++
		page, ok := all[strings.ReplaceAll(c.CommandPath(), " ", "-")+".8"]
		if !ok || !bytes.Contains(page, []byte("SYNOPSIS")) || !bytes.Contains(page, []byte(".TH ")) {
			t.Errorf("%s: %q", c.CommandPath(), page)
		}
	})
	if len(all) != count || count < 30 {
		t.Errorf("%d pages of %d commands", len(all), count)
	}
	if page := string(all["berth-exec.8"]); !strings.Contains(page, "a command in a container") || !strings.Contains(page, "127") {
		t.Errorf("got %s", page)
	}
}

// A package that is built twice is the same.
func TestPagesHaveNoDate(t *testing.T) {
	first := pages(t)
	t.Setenv("SOURCE_DATE_EPOCH", "1767225600")
	t.Setenv("BERTH_ENDPOINT", "/elsewhere")
	date := regexp.MustCompile(`(?i)auto generated|"[a-z]{3} [0-9]{4}"|\.TH "[^"]*" "8" "[^"]+"`)
	for name, page := range pages(t) {
		if !bytes.Equal(page, first[name]) {
			t.Errorf("%s is another one", name)
		}
		if found := date.Find(page); found != nil {
			t.Errorf("%s has %q", name, found)
		}
	}
}

// Whatever a shell asks for, it gets no names of files where a command takes none, and no error.
func TestEachCommandCompletes(t *testing.T) {
	at := serveFake(t, services())
	files := map[string]bool{"play": true, "cp": true, "import": true, "config show": true, "config check": true, "restore": true, "man": true, "report": true, "bundle": true, "audit verify": true}
	root := app{}.root()
	count := 0
	everyCommand(root, func(c *cobra.Command) {
		if c == root {
			return
		}
		name := strings.TrimPrefix(c.CommandPath(), "berth ")
		args := append([]string{"__complete", "--endpoint", at}, strings.Fields(name)...)
		out, problem := berth(t, at, append(args, "")...)
		noFiles := strings.Contains(out, "ShellCompDirectiveNoFileComp")
		if problem != "" || !strings.Contains(out, "ShellCompDirective") || noFiles == files[name] {
			t.Errorf("completion of berth %s: %s\n%s", name, problem, out)
		}
		out, problem = berth(t, at, append(args, "--")...)
		if problem != "" || !strings.Contains(out, "--help") {
			t.Errorf("completion of the flags of berth %s: %s\n%s", name, problem, out)
		}
		count++
	})
	if count < 30 {
		t.Errorf("only %d commands", count)
	}
	for line, want := range map[string]string{
		"":            "port-forward",
		"ps --sort ":  "restarts",
		"ps --state ": "exited",
		"ps -o ":      "yaml",
		"logs ":       "db",
		"why ":        "nginx",
	} {
		out, problem := berth(t, at, append([]string{"__complete", "--endpoint", at}, strings.Split(line, " ")...)...)
		says(t, "completion of "+line, out+problem, want, "ShellCompDirectiveNoFileComp")
	}
	for shell, want := range map[string]string{"bash": "complete -o default", "zsh": "#compdef berth", "fish": "complete -c berth"} {
		out, problem := berth(t, at, "completion", shell)
		says(t, "berth completion "+shell, out+problem, want)
	}
}
