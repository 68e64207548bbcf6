// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"sigs.k8s.io/yaml"
)

// Whatever is in a file, reading it ends with a plan or an error.
func FuzzSettings(f *testing.F) {
	err := filepath.WalkDir("testdata/nodes", func(name string, d fs.DirEntry, err error) error {
		if err == nil && (strings.HasSuffix(name, ".toml") || strings.HasSuffix(name, ".conf")) {
			var b []byte
			if b, err = os.ReadFile(name); err == nil {
				f.Add(b)
			}
		}
		return err
	})
	if err != nil {
		f.Fatal(err)
	}
	nothing := facts{
		which: func(string) string { return "" },
		read:  func(string) ([]byte, error) { return nil, fs.ErrNotExist },
		full:  func(string) bool { return true },
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if cfg, version, err := containerdTree("/f", text); err == nil {
			if tr, err := fromContainerd(cfg, version, nothing); err == nil {
				var m map[string]any
				if b := draft(tr.settings, "x", false); toml.Unmarshal(b, &m) != nil {
					t.Errorf("not TOML: %s", b)
				}
			}
		}
		if cfg, err := parseTOML("/f", text); err == nil {
			_, _ = fromCRIO(cfg, cfg, nothing) // it ends
		}
	})
}

// A configuration of a kubelet that can be read names berth's socket afterwards, and has its other
// settings.
func FuzzKubelet(f *testing.F) {
	f.Add("kind: KubeletConfiguration\n", "")
	f.Add(`{"containerRuntimeEndpoint": "unix:///a", "cgroupDriver": "systemd"}`, "")
	f.Add("\"containerRuntimeEndpoint\": unix:///a\nhealthzPort: 1", "ARGS='--v=2 --container-runtime-endpoint unix:///a'\n")
	f.Fuzz(func(t *testing.T, text, flags string) {
		const socket = "unix:///run/berth/berth.sock"
		var before, after kubeletSettings
		if yaml.Unmarshal([]byte(text), &before) != nil {
			return
		}
		k := kubelet{config: "/c", texts: map[string]string{"/c": text, "/f": flags}, settings: []string{"/c"}, flags: []string{"/f"}}
		_, texts, err := k.edits(socket)
		if err != nil {
			return
		}
		named := cmp.Or(texts["/c"], text)
		if err := yaml.Unmarshal([]byte(named), &after); err != nil {
			t.Fatalf("%q cannot be read any more: %v", named, err)
		}
		if flagOf(cmp.Or(texts["/f"], flags), endpointFlags[0]) == "" {
			before.ContainerRuntimeEndpoint = socket
		} else {
			before.ContainerRuntimeEndpoint = after.ContainerRuntimeEndpoint
		}
		if !reflect.DeepEqual(before, after) {
			t.Errorf("%q becomes %q: %+v, and not %+v", text, named, after, before)
		}
	})
}
