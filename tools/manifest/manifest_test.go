// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Each testdata/*.yaml has a golden file beside it with the plan, or the error, that it becomes.
func TestTranslate(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no pods", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".yaml"), func(t *testing.T) {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			o := Options{
				UID:     "u-1",
				FirstID: 3 * IDs,
				HostIP:  "192.0.2.7",
				HostDNS: &runtimeapi.DNSConfig{
					Servers:  []string{"192.0.2.53"},
					Searches: []string{"example.org"},
					Options:  []string{"ndots:1", "rotate"},
				},
				IgnoreUnsupported: bytes.HasPrefix(b, []byte("# --ignore-unsupported")),
			}
			got := describe(t, b, o)
			golden := strings.TrimSuffix(f, ".yaml") + ".golden"
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), string(got)); d != "" {
				t.Errorf("-want +got (go test -update rewrites %s):\n%s", golden, d)
			}
		})
	}
}

func describe(t *testing.T, b []byte, o Options) []byte {
	pod, err := Parse(b)
	if err != nil {
		return []byte("ERROR " + err.Error() + "\n")
	}
	before, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := Translate(pod, o)
	if after, _ := json.Marshal(pod); !bytes.Equal(before, after) {
		t.Error("Translate changed the pod")
	}
	if err != nil {
		return []byte("ERROR " + strings.ReplaceAll(err.Error(), "\n", "\nERROR ") + "\n")
	}
	raw := func(v any) json.RawMessage {
		if m, ok := v.(proto.Message); ok {
			b, err := protojson.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			v = nil // protojson varies its white space on purpose, so it is written anew
			if err := json.Unmarshal(b, &v); err != nil {
				t.Fatal(err)
			}
		}
		b, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	type container struct {
		PullPolicy string
		NonRoot    bool
		Config     json.RawMessage
	}
	out := struct {
		Name, Handler, HostIP string
		Grace                 int64
		Ignored               []string
		Volumes               []Volume
		Sandbox               json.RawMessage
		Init, Containers      []container
	}{
		Name:    plan.Name,
		Handler: plan.Handler,
		HostIP:  plan.HostIP,
		Grace:   plan.Grace,
		Ignored: plan.Ignored,
		Volumes: plan.Volumes,
		Sandbox: raw(plan.Sandbox),
	}
	add := func(to *[]container, list []Container) {
		for _, c := range list {
			env := c.Config.GetEnvs() // bytes would be written in base64
			c.Config.Envs = nil
			var m map[string]any
			if err := json.Unmarshal(raw(c.Config), &m); err != nil {
				t.Fatal(err)
			}
			var vars []string
			for _, e := range env {
				vars = append(vars, e.GetKey()+"="+string(e.GetValue()))
			}
			m["envs"] = vars
			*to = append(*to, container{c.PullPolicy, c.NonRoot, raw(m)})
		}
	}
	add(&out.Init, plan.Init)
	add(&out.Containers, plan.Containers)
	return append(raw(out), '\n')
}

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "1", "B": "$(A)"}
	for in, want := range map[string]string{
		"":  "",
		"$": "$", "$$": "$", "$x": "$x",
		"$(A)": "1", "x$(A)y$(A)": "x1y1", "$(B)": "$(A)",
		"$$(A)": "$(A)", "$$$(A)": "$1",
		"$(none)": "$(none)", "$(A": "$(A", "$()": "$()",
	} {
		if got := expand(in, vars); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

// A name, a namespace or a UID becomes part of a path (CVE-2025-0750 is such a one that was not
// checked).
func TestNamesThatLeadElsewhereAreRefused(t *testing.T) {
	pod := func(meta, container, volume string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {" + meta + "}\nspec: {containers: [{name: " + container + ", image: i}], volumes: [{name: " + volume + ", emptyDir: {}}]}\n"
	}
	for what, manifest := range map[string]string{
		"metadata.name":           pod(`name: "../x"`, "c", "v"),
		"metadata.namespace":      pod(`name: p, namespace: "../../etc"`, "c", "v"),
		"metadata.uid":            pod(`name: p, uid: "../../etc"`, "c", "v"),
		"spec.containers[0].name": pod(`name: p`, `"../c"`, "v"),
		"spec.volumes[0].name":    pod(`name: p`, "c", `".."`),
	} {
		p, err := Parse([]byte(manifest))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Translate(p, Options{UID: "u-1"}); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

func TestVolumesArePrepared(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, v := range []struct {
		path, kind, problem string
	}{
		{"u/e", emptyDir, ""},
		{"new/dir", "DirectoryOrCreate", ""}, {"new/file", "FileOrCreate", ""}, {"file", "FileOrCreate", ""},
		{"file", "", ""}, {"file", "File", ""}, {"new", "Directory", ""},
		{"none", "", "no such file"}, {"file", "Directory", "not of type"}, {"new", "File", "not of type"}, {"file", "Socket", "not of type"},
	} {
		err := Volume{Name: "v", Path: filepath.Join(dir, v.path), Type: v.kind}.Prepare()
		if v.problem == "" && err != nil || v.problem != "" && (err == nil || !strings.Contains(err.Error(), v.problem)) {
			t.Errorf("%s as %q: got %v", v.path, v.kind, err)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "u/e")); err != nil || st.Mode().Perm() != 0o777 {
		t.Errorf("an emptyDir is not writable for every user: %v %v", st.Mode(), err)
	}
	if b, _ := os.ReadFile(file); string(b) != "kept" {
		t.Error("FileOrCreate replaced a file that existed")
	}
	for _, uid := range []string{"", "..", "../" + filepath.Base(dir), "u/e"} {
		if err := RemoveVolumes(dir, uid); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "u/e")); err != nil {
		t.Error("a UID that is not a plain word removed something")
	}
	if err := RemoveVolumes(dir, "u"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "u")); err == nil {
		t.Error("the volumes are still there")
	}
}
