// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// containerd's code logged a mistake in a hosts.toml and asked the registry itself, past the mirror
// and the certificates that the operator had configured.
func TestAMistakeInTheConfigurationOfARegistryHasAFileAndALine(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "registry.example", "hosts.toml")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"server = 'https://registry.example'\n[host.'http://mirror.example:5000']\ncapabilities = ['pull', 'Resolve']\nskip_verify = true\ndial_timeout = '5s'\noverride_path = true\n[host.'http://mirror.example:5000'.header]\nx-a = ['b']\n": "",
		"": "",
		"[host.'https://mirror.example']\nca = [['hosts.toml']]\n":                 "",
		"server = 'registry.example'":                                              "",
		"server = 'https://registry.example'\nserver 'x'\n":                        "line 2: ",
		"\n[host.'https://mirror.example']\ncapabilities = ['pull', 'resolves']\n": "line 3: capability \"resolves\"",
		"\n[host.'https://mirror.example']\ncapability = ['pull']\n":               "line 3: there is no setting \"host.https://mirror.example.capability\"",
		"[host.'https://mirror.example']\nskip_verify = 'yes'\n":                   "line 2: ",
		"[host.'https://mirror.example']\n\nca = 'absent.crt'\n":                   "line 3: ca: ",
		"[host.'https://mirror.example']\nclient = 5\n":                            "line 2: client is neither",
		"[host.'https://mirror.example']\ndial_timeout = '5'\n":                    "line 2: \"5\" is not a duration",
		"server = 'https://a'\n[host.'https://']\n":                                "line 2: \"https://\" is not a URL",
		"server = 'httpx://a'\n":                                                   "line 1: \"httpx://a\" is not a URL",
		"[host.'https://mirror.example'.header]\n\nx-a = 5\n":                      "line 3: header x-a",
		"[[host]]\nurl = 'https://mirror.example'\n":                               "line 1: ",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := errors.Join(CheckRegistries(dir)...)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), file+", "+want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if errs := CheckRegistries(filepath.Join(dir, "absent")); len(errs) > 0 {
		t.Errorf("a directory that does not exist: %v", errs)
	}
}
