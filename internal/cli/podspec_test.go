// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestTranslate compares each testdata/*.yaml's plan, or error, with the golden file beside it.
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
			o := PlayOptions{UID: "u-1", HostIP: "192.0.2.7", HostDNS: &runtimeapi.DNSConfig{Servers: []string{"192.0.2.53"}, Searches: []string{"example.org"}, Options: []string{"ndots:1", "rotate"}}}
			o.IgnoreUnsupported = bytes.HasPrefix(b, []byte("# --ignore-unsupported"))
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

func describe(t *testing.T, b []byte, o PlayOptions) []byte {
	pod, err := ParsePod(b)
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
		b, err := marshal(v)
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
		Volumes               []PlannedVolume
		Sandbox               json.RawMessage
		Init, Containers      []container
	}{Name: plan.Name, Handler: plan.Handler, HostIP: plan.HostIP, Grace: plan.Grace, Ignored: plan.Ignored, Volumes: plan.Volumes, Sandbox: raw(plan.Sandbox)}
	add := func(to *[]container, list []PlannedContainer) {
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

// A name, namespace or UID is part of paths (CVE-2025-0750 is one that was not checked).
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
		p, err := ParsePod([]byte(manifest))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Translate(p, PlayOptions{UID: "u-1"}); err == nil || !strings.Contains(err.Error(), what) {
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
		err := PlannedVolume{"v", filepath.Join(dir, v.path), v.kind}.prepare()
		if v.problem == "" && err != nil || v.problem != "" && (err == nil || !strings.Contains(err.Error(), v.problem)) {
			t.Errorf("%s as %q: got %v", v.path, v.kind, err)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "u/e")); err != nil || st.Mode().Perm() != 0o777 {
		t.Errorf("an emptyDir is for every user: %v %v", st.Mode(), err)
	}
	if b, _ := os.ReadFile(file); string(b) != "kept" {
		t.Error("FileOrCreate made a file that was there")
	}
	for _, uid := range []string{"", "..", "../" + filepath.Base(dir), "u/e"} {
		if err := removeVolumes(dir, uid); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "u/e")); err != nil {
		t.Error("a UID that is no word removed something")
	}
	if err := removeVolumes(dir, "u"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "u")); err == nil {
		t.Error("the volumes are still there")
	}
}
