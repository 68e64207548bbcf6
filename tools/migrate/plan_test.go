// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"berth/internal/base/config"
)

var update = flag.Bool("update", false, "write the golden files")

// write writes files below a directory.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// scratch is a directory in memory, if there is one: these tests replace thousands of files.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "berth-migrate-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// newNode makes a node with a kubelet and an installed berth, and the files besides.
func newNode(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := scratch(t)
	write(t, dir, map[string]string{
		"usr/lib/systemd/system/kubelet.service":       "[Service]\nExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml\n",
		"usr/local/lib/systemd/system/berth.service":   "[Service]\n",
		"var/lib/kubelet/config.yaml":                  "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///run/containerd/containerd.sock # it is\ncgroupDriver: systemd\n",
		"etc/berth/config.toml":                        "# berth's own\n",
		"etc/cni/net.d/10-net.conflist":                "{}\n",
		"opt/cni/bin/net":                              "",
		"etc/crictl.yaml":                              "timeout: 10\nruntime-endpoint: \"unix:///run/containerd/containerd.sock\"\n",
		"usr/local/lib/systemd/system/ignored.service": "",
	})
	write(t, dir, files)
	return dir
}

// Every setting of a published form of configuration becomes one of berth's, or is named.
func TestPlansOfPublishedConfigurations(t *testing.T) {
	nodes, err := filepath.Glob("testdata/nodes/*")
	if err != nil || len(nodes) < 20 {
		t.Fatal(nodes, err)
	}
	for _, dir := range nodes {
		name := filepath.Base(dir)
		t.Run(name, func(t *testing.T) {
			p, err := Make(t.Context(), Where{Root: dir, Beside: strings.HasSuffix(name, "-beside")}, nil)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			p.Write(&got)
			for _, s := range p.Steps {
				if s.Do == Write && s.mode != 0o600 && !strings.HasPrefix(s.What, hostsDir) { // what is for root alone may have passwords
					got.WriteString("\n" + s.What + " is then:\n\n" + indent(string(s.body)))
				}
			}
			golden := filepath.Join("testdata/plans", name+".txt")
			if *update {
				write(t, ".", map[string]string{golden: got.String()})
			}
			want, err := os.ReadFile(golden)
			if err != nil || string(want) != got.String() {
				t.Errorf("the plan is not that of %s (%v); -update writes it:\n%s", golden, err, got.String())
			}
			text, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			for _, out := range []string{got.String(), string(text)} {
				if strings.Contains(out, "hunter") || strings.Contains(out, "secret-token") || strings.Contains(out, "bm9kZ") {
					t.Errorf("a password is shown: %s", out)
				}
			}
			checkSettings(t, p)
		})
	}
}

// checkSettings reads what is written as berth does.
func checkSettings(t *testing.T, p *Plan) {
	t.Helper()
	for _, s := range p.Steps {
		if s.Do != Write {
			continue
		}
		switch {
		case s.What == settingsFile:
			name := filepath.Join(t.TempDir(), "config.toml")
			write(t, filepath.Dir(name), map[string]string{"conf.d/x.toml": string(s.body)})
			cfg, err := config.LoadIfThere(name)
			if err == nil {
				err = cfg.Check()
			}
			if err != nil {
				t.Errorf("berth cannot read its settings: %v\n%s", err, s.body)
			}
			if s.mode != 0o600 {
				t.Errorf("the settings have the mode %o", s.mode)
			}
		case strings.HasSuffix(s.What, ".toml"):
			var m map[string]any
			if err := toml.Unmarshal(s.body, &m); err != nil {
				t.Errorf("%s: %v\n%s", s.What, err, s.body)
			}
		}
	}
}

// A key of a configuration that nobody has thought of is named, and not dropped.
func TestNothingIsLeftOutWithoutAWord(t *testing.T) {
	dir := newNode(t, map[string]string{"etc/containerd/config.toml": "version = 3\n[brand_new]\nx = 1\n[proxy_plugins.x]\ny = 1\n"})
	p, err := Make(t.Context(), Where{Root: dir}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(p.Remarks, func(r Remark) bool { return r.Setting == "brand_new.x" && r.File == "/etc/containerd/config.toml" }) {
		t.Errorf("got %+v", p.Remarks)
	}
}

// What is in the plan of a file that cannot be used is an error with the file and what to do.
func TestBadInputIsNamed(t *testing.T) {
	containerd := "etc/containerd/config.toml"
	kubelet := "var/lib/kubelet/config.yaml"
	crio := map[string]string{kubelet: "containerRuntimeEndpoint: unix:///run/crio/crio.sock\n"}
	for name, c := range map[string]struct {
		files map[string]string
		where Where
		want  string
	}{
		"no TOML":              {map[string]string{containerd: "version = 2\n[plugins\n"}, Where{}, `read /etc/containerd/config.toml: line 2, column .*correct`},
		"a key twice":          {map[string]string{containerd: "version = 2\nversion = 2\n"}, Where{}, `read /etc/containerd/config.toml:`},
		"no version":           {map[string]string{containerd: "[plugins.cri]\nsandbox_image = 'x'\n"}, Where{}, `config.toml: it has no version.*containerd config migrate`},
		"version 1":            {map[string]string{containerd: "version = 1\n"}, Where{}, `version 1 is not read.*containerd config migrate`},
		"a version of text":    {map[string]string{containerd: "version = 'two'\n"}, Where{}, `version "two" is not read`},
		"a newer version":      {map[string]string{containerd: "version = 5\n"}, Where{}, `version 5 is newer`},
		"a wrong type":         {map[string]string{containerd: "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\nsnapshotter = 3\n"}, Where{}, `snapshotter is 3, which is not a string; correct`},
		"a wrong list":         {map[string]string{containerd: "version = 3\ndisabled_plugins = [1]\n"}, Where{}, `disabled_plugins is \[1\], which is not a list of strings`},
		"a table for a value":  {map[string]string{containerd: "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.registry.mirrors.'docker.io']\nendpoint = 'x'\n"}, Where{}, `not a list of strings`},
		"imports what is gone": {map[string]string{containerd: "version = 2\nimports = ['/etc/gone.toml']\n"}, Where{}, `read /etc/gone.toml: there is no such file, and /etc/containerd/config.toml imports it`},
		"an import that is no TOML": {map[string]string{
			containerd: "version = 2\nimports = ['*.d/*']\n", "etc/containerd/x.d/y": "=",
		}, Where{}, `read /etc/containerd/x.d/y: line 1`},
		"a handler that is not there": {map[string]string{containerd: "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'crun'\n"}, Where{}, `default_runtime_name is "crun"`},
		"a mirror that is no URL":     {map[string]string{containerd: "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.registry.mirrors.'docker.io']\nendpoint = ['mirror']\n"}, Where{}, `"mirror", which is not a URL`},
		"a mirror of a path":          {map[string]string{containerd: "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.registry.mirrors.'../x']\nendpoint = ['https://m']\n"}, Where{}, `not the host of a registry`},
		"base64":                      {map[string]string{containerd: "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.registry.configs.x.auth]\nauth = '!'\n"}, Where{}, `auth is \(hidden\), which is not a user and a password in base64`},
		"what berth refuses":          {map[string]string{containerd: "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.registry]\nconfig_path = 'certs.d'\n"}, Where{}, `berth could not start.*registry_dir.*correct it in /etc/containerd/config.toml`},
		"the kubelet's YAML":          {map[string]string{kubelet: "a: [\n"}, Where{}, `read /var/lib/kubelet/config.yaml: it is not a configuration of a kubelet`},
		"another kind":                {map[string]string{kubelet: "kind: Config\n"}, Where{}, `its kind is Config`},
		"Docker":                      {map[string]string{kubelet: "containerRuntimeEndpoint: unix:///var/run/cri-dockerd.sock\n"}, Where{}, `uses Docker.*docs/migrate.md`},
		"an unknown socket":           {map[string]string{kubelet: "containerRuntimeEndpoint: unix:///run/x.sock\n"}, Where{}, `may be any runtime; name it with --from`},
		"two runtimes":                {map[string]string{kubelet: "kind: KubeletConfiguration\n", containerd: "", "etc/crio/crio.conf": ""}, Where{}, `nothing says which one`},
		"nothing at all":              {map[string]string{kubelet: "kind: KubeletConfiguration\n"}, Where{}, `neither a configuration of containerd`},
		"an unknown runtime":          {nil, Where{From: "docker"}, `--from "docker" is neither`},
		"a file that is not there":    {nil, Where{ContainerdConfig: "/x.toml"}, `read /x.toml: there is no such file`},
		"a kubelet's, either":         {nil, Where{KubeletConfig: "/x.yaml"}, `read /x.yaml: there is no such file`},
		"CRI-O's, either":             {crio, Where{CRIOConfig: "/x.conf"}, `read /x.conf: there is no such file`},
		"CRI-O beside":                {crio, Where{Beside: true}, `--beside keeps containerd`},
		"CRI-O's TOML":                {map[string]string{kubelet: crio[kubelet], "etc/crio/crio.conf.d/x": "[["}, Where{}, `read /etc/crio/crio.conf.d/x: line 1`},
		"CRI-O's driver":              {map[string]string{kubelet: crio[kubelet], "etc/crio/crio.conf": "[crio.runtime]\ncgroup_manager = 'x'\n"}, Where{}, `cgroup_manager is "x", which is not systemd or cgroupfs`},
		"CRI-O's credentials":         {map[string]string{kubelet: crio[kubelet], "etc/crio/crio.conf": "[crio.image]\nglobal_auth_file = '/a'\n", "a": "{"}, Where{}, `read /a: it is not a file of credentials`},
		"berth's own":                 {map[string]string{"etc/berth/config.toml": "nonsense = 1\n"}, Where{}, `the settings of berth that are there already`},
	} {
		t.Run(name, func(t *testing.T) {
			c.where.Root = newNode(t, c.files)
			_, err := Make(t.Context(), c.where, nil)
			if err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) {
				t.Errorf("got %v, and not %s", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), c.where.Root) && name != "berth's own" {
				t.Errorf("%v names a file as it is not called on the node", err)
			}
		})
	}
	if _, err := Make(t.Context(), Where{Root: "/does/not/exist"}, nil); err == nil {
		t.Error("a root that is not there was read")
	}
}

// What turns CRI off turns it off once.
func FuzzWithoutCRI(f *testing.F) {
	f.Add("version = 2\ndisabled_plugins = [\n'a.b', # c\n]\n[grpc]\n")
	f.Fuzz(func(t *testing.T, text string) {
		if b, err := withoutCRI("/f", text); err == nil {
			if again, err := withoutCRI("/f", string(b)); err != nil || !bytes.Equal(again, b) {
				t.Errorf("%v: %q and then %q", err, b, again)
			}
		}
	})
}

func TestContainerdIsKeptWithoutItsCRI(t *testing.T) {
	for text, want := range map[string]string{
		"": "version = 2\ndisabled_plugins = ",
		"version = 2\n# keep\ndisabled_plugins = [\n 'io.x.y', # why\n]\n[grpc]\ndisabled_plugins = ['no']\n": "version = 2\n# keep\ndisabled_plugins = ['io.x.y', 'io.containerd.grpc.v1.cri', 'io.containerd.cri.v1.images', 'io.containerd.cri.v1.runtime']\n[grpc]\ndisabled_plugins = ['no']\n",
		"version = 3\n[plugins]\n": "version = 3\ndisabled_plugins = ['io.containerd.grpc.v1.cri', 'io.containerd.cri.v1.images', 'io.containerd.cri.v1.runtime']\n[plugins]\n",
	} {
		got, err := withoutCRI("/f", text)
		if err != nil || !strings.HasPrefix(string(got), want) {
			t.Errorf("%q became %q: %v", text, got, err)
		}
	}
}

func TestEditsOfTheKubeletsFilesLeaveTheRest(t *testing.T) {
	const s = "unix:///run/berth/berth.sock"
	for _, c := range []struct{ text, want string }{
		{"a: b\n# c\ncontainerRuntimeEndpoint: \"x\" # d\ne: f", "a: b\n# c\ncontainerRuntimeEndpoint: " + s + "\ne: f"},
		{"a: b", "a: b\ncontainerRuntimeEndpoint: " + s + "\n"},
		{"{}", "{\n  \"containerRuntimeEndpoint\": \"" + s + "\"}"},
		{"{\n\"a\": 1}", "{\n  \"containerRuntimeEndpoint\": \"" + s + "\",\n\"a\": 1}"},
		{`{"containerRuntimeEndpoint" : "x","a":1}`, `{"containerRuntimeEndpoint" : "` + s + `","a":1}`},
		{"'containerRuntimeEndpoint': x\na: b", "containerRuntimeEndpoint: " + s + "\na: b"},
		{"{containerRuntimeEndpoint: x}", ""}, // a person has to do it
		{`{"a":{"containerRuntimeEndpoint":"x"}}`, ""},
	} {
		if got, err := setKey(c.text, "containerRuntimeEndpoint", s, true); (err == nil) != (c.want != "") || err == nil && got != c.want {
			t.Errorf("%q became %q, and not %q: %v", c.text, got, c.want, err)
		}
	}
	text := "# --container-runtime-endpoint=no\nA=\"--a --container-runtime-endpoint=unix:///x --b\"\nB='--container-runtime-endpoint unix:///y'\n"
	if got := flagOf(text, "container-runtime-endpoint"); got != "unix:///y" {
		t.Errorf("the flag is %q", got)
	}
	want := "# --container-runtime-endpoint=no\nA=\"--a --container-runtime-endpoint=" + s + " --b\"\nB='--container-runtime-endpoint " + s + "'\n"
	if got := setFlag(text, "container-runtime-endpoint", s); got != want {
		t.Errorf("got %q", got)
	}
	there := kubelet{config: "/c", settings: []string{"/c", "/d"}, texts: map[string]string{"/c": "a: b\n", "/d": "containerRuntimeEndpoint: " + s + "\n"}}
	if files, _, err := there.edits(s); err != nil || len(files) > 0 {
		t.Errorf("a kubelet that has the socket already: %q is changed, %v", files, err)
	}
}
