// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
)

// "run" was answered with "did you mean rm, ui", and "rmi" with nothing.
func TestTheVerbsOfOtherToolsAreHintedAt(t *testing.T) {
	for verb, want := range map[string]string{
		"rmi":      "berth images rm",
		"get":      "berth pods",
		"describe": "berth why",
		"apply":    "berth play",
		"stopp":    "berth stop",
		"inspecti": "berth inspect",
		"rmp":      "berth rm",
		"login":    "config.json",
		"info":     "berth status",
		"Kill":     "berth stop",
		"timelin":  "did you mean timeline",
		"xyzzy":    "berth --help",
	} {
		_, problem := berth(t, "/s", verb)
		says(t, verb, problem, want)
	}
	for verb, hint := range hints { // each names commands that there are
		root := app{}.root()
		if cmd, _, err := root.Find([]string{verb}); err == nil && cmd != root {
			t.Errorf("there is a command %s", verb)
		}
		for _, part := range strings.Split(hint, "`berth ")[1:] {
			args := strings.Fields(strings.Split(part, "`")[0])
			if cmd, _, err := root.Find(args); err != nil || cmd == root {
				t.Errorf("the hint for %s names berth %s", verb, part)
			}
		}
	}
}

func TestRunMakesAPodOfOneContainer(t *testing.T) {
	f := newFake()
	f.ends = map[string]int32{"busybox": 7}
	dir := t.TempDir()
	volumes := filepath.Join(dir, "v")
	out, err := run(serveFake(t, f), "run", "--volume-dir", volumes, "-d", "--name", "web", "-e", "A=b", "-v", dir+":/x:ro", "-w", "/tmp", "docker.io/library/busybox:1.36", "sh", "-c", "exit 7")
	if err != nil || out != "pod0\n" {
		t.Fatalf("%v %s", err, out)
	}
	ct := f.created[0]
	if m := f.sandbox.GetMetadata(); m.GetName() != "web" || m.GetNamespace() != "default" || ct.GetMetadata().GetName() != "busybox" ||
		!slices.Equal(ct.GetArgs(), []string{"sh", "-c", "exit 7"}) || string(ct.GetEnvs()[0].GetValue()) != "b" || ct.GetWorkingDir() != "/tmp" ||
		ct.GetMounts()[0].GetContainerPath() != "/x" || !ct.GetMounts()[0].GetReadonly() {
		t.Errorf("%v %v", f.sandbox, ct)
	}
	for _, args := range [][]string{{"-d", "--rm", "a"}, {"-v", "x", "a"}, {"-v", ":/x", "a"}, {"-e", "x", "a"}} {
		if _, err := run("/s", append([]string{"run"}, args...)...); ExitCode(err) != exitItself {
			t.Errorf("run %v: %v", args, err)
		}
	}
}

// An empty argument, such as a variable that is not set, stood for the directory of the command.
func TestAnEmptyPathNamesNoFile(t *testing.T) {
	at := serveFake(t, services())
	for _, args := range []string{"import", "restore", "checkpoint web", "run -v :/x busybox", "run --volume-dir= busybox", "report", "bundle"} {
		fields := strings.Fields(args)
		if fields[0] != "run" {
			fields = append(fields, "")
		}
		if _, err := run(at, fields...); err == nil || !strings.Contains(err.Error(), "path is empty") && !strings.Contains(err.Error(), "name") {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestExecTakesTheFirstContainerAndSaysSo(t *testing.T) {
	f := services()
	f.addPod("aad444", "default", "two")
	f.addContainer("ddd111", "aad444", "side", 0, runtimeapi.ContainerState_CONTAINER_RUNNING).CreatedAt = 2
	f.addContainer("ddd222", "aad444", "app", 0, runtimeapi.ContainerState_CONTAINER_RUNNING).CreatedAt = 1
	f.addContainer("ddd333", "aad444", "init", 0, runtimeapi.ContainerState_CONTAINER_EXITED).CreatedAt = 0
	out, _ := run(serveFake(t, f), "exec", "two", "ls")
	says(t, "exec", out, "container app, the first of app, side; -c names another one")
}

func TestALogIsNamedByThePodAndTheContainer(t *testing.T) {
	at := serveFake(t, services())
	_, problem := berth(t, at, "logs", "web", "none", "-n", "5")
	says(t, "another container", problem, "has no container none")
	_, problem = berth(t, at, "logs", "web", "nginx", "-c", "nginx")
	says(t, "twice", problem, "named twice")
}

func TestCredentialsComeFromTheInputAndFromDockerLogin(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"auths": {"r.example": {"auth": "bWU6c2VjcmV0"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		image, creds, input string
		want                string // user and password; "" for none
	}{
		{"r.example/a:1", "", "", "me secret"},
		{"other.example/a:1", "", "", ""},
		{"r.example/a:1", "you:word", "", "you word"},
		{"r.example/a:1", "", "they:pass:word\n", "they pass:word"},
		{"NOT AN IMAGE", "", "", ""},
	} {
		cmd := &cobra.Command{}
		cmd.SetIn(strings.NewReader(tt.input))
		auth, err := credentials(cmd, tt.image, tt.creds, tt.input != "")
		if got := strings.TrimSpace(auth.GetUsername() + " " + auth.GetPassword()); got != tt.want || err != nil {
			t.Errorf("%+v: %q %v", tt, got, err)
		}
	}
	if _, err := credentials(&cobra.Command{}, "a", "nocolon", false); err == nil {
		t.Error("credentials without a colon")
	}
}

// IDs of 64 digits broke the lines, and "No space left on device" was above the last three lines.
func TestWhyShowsShortIDsAndTheLineThatTells(t *testing.T) {
	var b bytes.Buffer
	printWhy(&b, &berthv1.WhyResponse{
		What:  "task " + strings.Repeat("a", 64) + " is gone.",
		Wrote: []string{"starting", "write /data: No space left on device", "flushing", "closing", "bye"},
	})
	says(t, "why", b.String(), "task aaaaaaaaaaaaa is gone.", "No space left on device", "closing", "bye")
	if strings.Contains(b.String(), "flushing") {
		t.Errorf("more lines than promised:\n%s", b.String())
	}
}

// A container chooses the archive that cp reads.
func TestCopiesStayBelowTheirDestination(t *testing.T) {
	archive := func(headers ...tar.Header) *bytes.Buffer {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			h.Mode = 0o644
			if h.Typeflag == tar.TypeReg {
				h.Size = 2
			}
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if h.Size > 0 {
				_, _ = w.Write([]byte("hi"))
			}
		}
		_ = w.Close()
		return &b
	}
	outside := t.TempDir()
	for name, tt := range map[string]struct {
		archive *bytes.Buffer
		fails   bool
	}{
		"a tree":           {archive(tar.Header{Name: "d", Typeflag: tar.TypeDir}, tar.Header{Name: "d/f", Typeflag: tar.TypeReg}), false},
		"a path above":     {archive(tar.Header{Name: "d/../../x", Typeflag: tar.TypeReg}), true},
		"another name":     {archive(tar.Header{Name: "etc", Typeflag: tar.TypeReg}), true},
		"through a link":   {archive(tar.Header{Name: "d", Typeflag: tar.TypeSymlink, Linkname: outside}, tar.Header{Name: "d/f", Typeflag: tar.TypeReg}), true},
		"a link to above":  {archive(tar.Header{Name: "d", Typeflag: tar.TypeSymlink, Linkname: "../.."}, tar.Header{Name: "d/f", Typeflag: tar.TypeReg}), true},
		"an absolute path": {archive(tar.Header{Name: "/d/f", Typeflag: tar.TypeReg}), true},
	} {
		root, err := os.OpenRoot(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if err := unpack(root, tt.archive, "d", "copy"); (err != nil) != tt.fails {
			t.Errorf("%s: %v", name, err)
		}
		if b, err := root.ReadFile("copy/f"); !tt.fails && string(b) != "hi" {
			t.Errorf("%s: %q %v", name, b, err)
		}
		root.Close()
	}
	if left, err := os.ReadDir(outside); len(left) > 0 || err != nil {
		t.Errorf("outside of the destination: %v %v", left, err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("hi"), 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := pack(&b, dir, "d", st); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := unpack(root, &b, "d", "back"); err != nil {
		t.Error(err)
	}
	if b, err := root.ReadFile("back/f"); string(b) != "hi" {
		t.Errorf("%q %v", b, err)
	}
}
