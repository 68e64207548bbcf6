// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// offline runs a command that needs no service.
func offline(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	root := app{}.root()
	var b bytes.Buffer
	root.SetOut(&b)
	root.SetArgs(append([]string{"--endpoint", "/no/such/socket"}, args...))
	err = root.ExecuteContext(t.Context())
	return b.String(), err
}

func TestAPersonTriesAPolicy(t *testing.T) {
	dir := t.TempDir()
	file, config := filepath.Join(dir, "policy.toml"), filepath.Join(dir, "config.toml")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(config, "")
	if _, err := offline(t, "images", "allowed", "--config", config, "busybox"); err == nil || !strings.Contains(err.Error(), "image.policy_file is not set") {
		t.Errorf("%v", err)
	}
	write(config, "[image]\npolicy_file = '"+file+"'\n")
	if _, err := offline(t, "images", "allowed", "--config", config, "busybox"); err == nil || !strings.Contains(err.Error(), file) || ExitCode(err) != 1 {
		t.Errorf("%v", err)
	}
	write(file, `
[[rules]]
name = "base"
namespaces = ["team-*"]
repositories = ["docker.io/library/*"]
action = "allow"
[[rules]]
name = "signed"
registries = ["registry.example"]
action = "allow"
digest_only = true
signatures = "required"
verifier_dir = "/opt/verifiers"
[[rules]]
name = "rest"
registries = ["*"]
action = "deny"
`)
	out, err := offline(t, "images", "allowed", "--config", config, "-n", "team-a", "busybox:1")
	if err != nil {
		t.Error(err)
	}
	says(t, "what is allowed", out, "busybox:1", "allowed", "base")
	out, err = offline(t, "images", "allowed", "--file", file, "busybox:1", "registry.example/app@sha256:"+strings.Repeat("a", 64), "registry.example/app")
	if err == nil || ExitCode(err) != exitRefused || !strings.Contains(err.Error(), "2 of 3") {
		t.Errorf("%v", err)
	}
	says(t, "what is for no pod", out, "refused", "rest", "it denies the image", "allowed if signed", "signed", "/opt/verifiers", "by its digest alone")
	out, err = offline(t, "images", "allowed", "--file", file, "-o", "json", "busybox:1")
	var doc struct{ Items []verdict }
	if ExitCode(err) != exitRefused || json.Unmarshal([]byte(out), &doc) != nil || len(doc.Items) != 1 || doc.Items[0].Allowed || doc.Items[0].Rule != "rest" {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = offline(t, "images", "allowed", "--file", file)
	if err != nil {
		t.Error(err)
	}
	says(t, "the rules", out, "docker.io/library/* in team-*", "allow by digest if signed", "deny")
	if _, err := offline(t, "images", "allowed", "--file", file, "x.example/UPPER"); err == nil || ExitCode(err) != 1 {
		t.Errorf("%v", err)
	}
}
