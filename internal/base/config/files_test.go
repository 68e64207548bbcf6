// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// dropped loads a configuration file and drop-in files, which are given by name.
func dropped(t *testing.T, main string, files map[string]string) (l Loaded, dir string, err error) {
	t.Helper()
	dir = t.TempDir()
	write(t, filepath.Join(dir, "config.toml"), main)
	if err := os.Mkdir(filepath.Join(dir, "conf.d"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		write(t, filepath.Join(dir, "conf.d", name), text)
	}
	l, err = Load(filepath.Join(dir, "config.toml"))
	return l, dir, err
}

// A later file wins, key by key: also in a handler, in the default one, and in the credentials of a
// registry. A list is replaced.
func TestDropInFilesAreMergedKeyByKey(t *testing.T) {
	l, dir, err := dropped(t, `
root = '/main'
[log]
level = 'debug'
[network]
bin_dirs = ['/main/bin', '/main/more']
[runtimes.crun]
type = 'io.containerd.runc.v2'
binary = '/main/crun'
host_process = true
[image.auth.'a.example']
username = 'main'
password = 'main'
`, map[string]string{
		"10-first.toml": `
state = '/first'
[log]
format = 'json'
[network]
bin_dirs = ['/first/bin']
[runtimes.runc]
systemd_cgroup = true
[image.auth."a.example"]
password = 'first'
[image.auth."b.example"]
username = 'first'
password = 'first'
`,
		"20-second.toml": `
state = '/second'
cdi.spec_dirs = []
runtimes = { crun = { binary = '/second/crun' }, kata = { type = 'io.containerd.kata.v2' } }
`,
		".10-hidden.toml": "root = '/hidden'",
		"30-other.txt":    "root = '/other'",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Root, want.State = "/main", "/second"
	want.Log = Log{Level: "debug", Format: "json"}
	want.Network.BinDirs = []string{"/first/bin"}
	want.CDI.SpecDirs = []string{}
	want.Image.Auth = map[string]Auth{"a.example": {"main", "first"}, "b.example": {"first", "first"}}
	runc := want.Runtimes["runc"]
	runc.SystemdCgroup = true
	want.Runtimes["runc"] = runc
	want.Runtimes["crun"] = Runtime{Type: "io.containerd.runc.v2", Binary: "/second/crun", HostProcess: true}
	want.Runtimes["kata"] = Runtime{Type: "io.containerd.kata.v2"}
	if _, changed, restart := want.Reload(l.Config); len(changed)+len(restart) > 0 {
		t.Errorf("these are not as wanted: %q %q", changed, restart)
	}
	if err := l.Check(); err != nil {
		t.Error(err)
	}
	main, first, second := dir+"/config.toml", dir+"/conf.d/10-first.toml", dir+"/conf.d/20-second.toml"
	if want := []string{main, first, second}; !slices.Equal(l.Files, want) {
		t.Errorf("read %q", l.Files)
	}
	for key, want := range map[string]string{
		"root":                            main + ", line 2",
		"state":                           second + ", line 2",
		"log.level":                       main + ", line 4",
		"log.format":                      first + ", line 4",
		"network.bin_dirs[1]":             first + ", line 6",
		"runtimes.runc.systemd_cgroup":    first + ", line 8",
		"runtimes.runc.type":              "",
		"runtimes.crun.type":              main + ", line 8",
		"runtimes.crun.binary":            second + ", line 4",
		"runtimes.kata":                   second + ", line 4",
		`image.auth."a.example"`:          first + ", line 10",
		`image.auth."a.example".username`: main + ", line 12",
	} {
		if got := l.Origin(key); got != want {
			t.Errorf("%s was set in %q, want %q", key, got, want)
		}
	}
	if got := l.SetBy(second); !slices.Equal(got, []string{"cdi.spec_dirs", "runtimes.crun.binary", "runtimes.kata.type", "state"}) {
		t.Errorf("the second file sets %q", got)
	}
	var b bytes.Buffer
	if err := l.Write(&b); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("# Set in %s, line 2.\nstate = '/second'\n", second); !strings.Contains(b.String(), want) {
		t.Errorf("no %q in\n%s", want, b.String())
	}
	if strings.Contains(b.String(), "'first'\npassword = 'first'") {
		t.Error("a password is shown")
	}
}

// What a drop-in file sets is what the same text in the file itself would: for every setting.
func TestADropInFileCanSetEverySetting(t *testing.T) {
	d := Default()
	n := 0
	for _, key := range d.keys() {
		for _, value := range []string{"7", "'7s'", "true", "false", "'/seven'", `["/seven"]`} {
			text := key + " = " + value
			want, err := Parse([]byte(text))
			if err != nil || key == "runtimes" || strings.Count(key, ".") == 0 && reflect.DeepEqual(want, Default()) {
				continue
			}
			l, dir, err := dropped(t, "", map[string]string{"x.toml": text})
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if strings.HasPrefix(key, "runtimes.") { // there the file replaces the handler
				want = Default()
				if err := want.Set(key, value); err != nil {
					t.Fatal(err)
				}
			}
			if !reflect.DeepEqual(l.Config, want) {
				t.Errorf("%s: got %+v", text, l.Config)
			}
			if got, want := l.Origin(key), dir+"/conf.d/x.toml, line 1"; got != want {
				t.Errorf("%s: set in %q", text, got)
			}
			n++
		}
	}
	if n < 60 {
		t.Errorf("only %d settings were tried", n)
	}
}

func TestAMistakeInADropInFileIsNamedWithItsFileAndLine(t *testing.T) {
	for text, want := range map[string][]string{
		"\nroott = '/x'":                       {"line 2", `"root"`},
		"[network]\nbin_dirs = '/x'":           {"line 2"},
		"a":                                    {"line 1"},
		"[runtimes.runc]\n\nsystem_cgroup = 1": {"line 3", `"runtimes.runc.systemd_cgroup"`},
		"\n\nroot = 'x'":                       {"line 3", "not an absolute path"},
		"[cdi]\nspec_dirs = ['/a', 'b']":       {"line 2", "cdi.spec_dirs[1]"},
		"[runtimes.crun]\nbinary = '/x'":       {"line 2", "runtimes.crun.type"},
	} {
		l, dir, err := dropped(t, "", map[string]string{"10-x.toml": text})
		if err == nil {
			err = l.Check()
		}
		for _, w := range append(want, filepath.Join(dir, "conf.d", "10-x.toml")) {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%q: %v does not say %s", text, err, w)
			}
		}
	}
}

// A directory or a file that cannot be read would have set something: it is never taken for none.
func TestWhatCannotBeReadIsAnError(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config.toml")
	if _, err := Load(file); err == nil {
		t.Error("a named file need not exist")
	}
	if l, err := LoadIfThere(file); err != nil || len(l.Files) != 0 || !reflect.DeepEqual(l.Config, Default()) {
		t.Errorf("got %v", err)
	}
	if err := os.Symlink("loop", filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(dir, "conf.d"), filepath.Join(dir, "conf.d", "x.toml")} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(dir, "loop"), path); err != nil { // ELOOP, for whoever reads it
			t.Fatal(err)
		}
		if _, err := LoadIfThere(file); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "conf.d", "x.toml"), "root = '/x'")
	if l, err := LoadIfThere(file); err != nil || l.Root != "/x" { // the drop-in files alone
		t.Errorf("got %q, %v", l.Root, err)
	}
}

func TestTheDirectoryOfDropInFilesFollowsTheFile(t *testing.T) {
	for file, want := range map[string]string{
		"/etc/berth/config.toml": "/etc/berth/conf.d",
		"config.toml":            "conf.d",
		"/etc/berth/second.toml": "/etc/berth/second.conf.d",
		"/etc/berth.conf":        "/etc/berth.conf.conf.d",
	} {
		if got := DropIns(file); got != want {
			t.Errorf("%s has %s", file, got)
		}
	}
}

// What a flag sets comes after all files, and a mistake in it names no file.
func TestAFlagWinsOverTheFiles(t *testing.T) {
	l, _, err := dropped(t, "root = '/main'", map[string]string{"x.toml": "[runtimes.runc]\nsystemd_cgroup = true"})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Set("root", "here"); err != nil {
		t.Fatal(err)
	}
	if err := l.Check(); err == nil || !strings.HasPrefix(err.Error(), "the command line: root:") || strings.Contains(err.Error(), ".toml") {
		t.Errorf("got %v", err)
	}
	if !l.Runtimes["runc"].SystemdCgroup {
		t.Error("what the files set is gone")
	}
}

// PROPERTIES 47: a setting that an earlier version had, in a file or on the command line, does not keep
// berth from starting. It is named with its place.
func TestAFileWithARetiredSettingIsValid(t *testing.T) {
	l, dir, err := dropped(t, "[streams]\naddress = '127.0.0.1:1'\nkeep = true\n[runtimes.runc]\ntype = 'io.containerd.runc.v2'\noptions = 'runc'\n", map[string]string{"10.toml": "streams.keep = false\n"})
	if err != nil || l.Check() != nil {
		t.Fatal(err, l.Check())
	}
	want := dir + "/conf.d/10.toml, line 1: streams.keep has no effect any more: "
	if got := l.Retired(); l.Streams.Address != "127.0.0.1:1" || len(got) != 2 || !strings.HasPrefix(got[1], want) || !strings.Contains(got[0], "runtimes.runc.options") {
		t.Errorf("%s: %q, want %q", l.Streams.Address, got, want)
	}
	if err := l.Set("streams.keep", "true"); err != nil || !strings.HasPrefix(l.Retired()[1], commandLine) {
		t.Errorf("on the command line: %v, %q", err, l.Retired())
	}
	if _, err := Parse([]byte("[streams]\nkeep = true\nkep = true\n")); err == nil || strings.Contains(err.Error(), "line 2") {
		t.Errorf("an unknown setting beside a retired one: %v", err)
	}
}
