// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/pidfd"
)

// A pid that belongs to somebody else is never signalled, whatever names it.
func TestAForeignProcessIsNotOpened(t *testing.T) {
	var not errNotTried
	if fd, err := openOwn(os.Getpid(), "/cmdline", "berthdrill0"); !errors.As(err, &not) || fd != -1 {
		t.Errorf("got %d, %v", fd, err)
	}
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := openOwn(cmd.Process.Pid, "/cmdline", "true"); !errors.Is(err, pidfd.ErrGone) {
		t.Errorf("a process that has ended: %v", err)
	}
}

func TestAnEndIsJudged(t *testing.T) {
	killed := step{end: "137 Error"}
	for name, c := range map[string]struct {
		step  step
		exact bool
		code  int32
		why   string
		lag   time.Duration
		wrong string // "" for as promised
	}{
		"as promised":           {killed, true, 137, "Error", time.Millisecond, ""},
		"another code":          {killed, true, 0, "Completed", time.Millisecond, "it ended with 0 Completed instead of 137 Error"},
		"too late":              {killed, true, 137, "Error", 3 * time.Second, "its exit was visible 3s after its end: berth promises 2s"},
		"unknown, and may be":   {step{end: "137 Error", perhapsUnknown: true}, false, 255, "Unknown", 0, ""},
		"unknown by the kernel": {step{end: "137 Error", perhapsUnknown: true}, true, 255, "Unknown", 0, "instead of 137 Error"},
		"unknown of a shim":     {killed, false, 255, "Unknown", 0, "instead of 137 Error"},
		"berth was away":        {step{end: "137 Error", polled: true}, true, 137, "Error", 5 * time.Second, ""},
	} {
		cn := &canary{drill: &drill{exact: c.exact}, out: &Step{AfterEnd: c.lag}}
		got := cn.judge(c.step, &runtimeapi.ContainerStatus{ExitCode: c.code, Reason: c.why})
		if (got == "") != (c.wrong == "") || !strings.Contains(got, c.wrong) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestACanaryDoesWhatItIsToldTo(t *testing.T) {
	if code, err := Canary(ends); code != ownCode || err != nil {
		t.Errorf("got %d, %v", code, err)
	}
	if code, err := Canary("sing"); code == 0 || err == nil || !strings.Contains(err.Error(), "sing") {
		t.Errorf("got %d, %v", code, err)
	}
}

// The archive is one in the OCI layout: each descriptor names a blob of its digest and size.
func TestTheImageIsWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := writeImage(path, Image); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	blob := func(d v1.Descriptor, into any) {
		t.Helper()
		b := files["blobs/sha256/"+d.Digest.Encoded()]
		if int64(len(b)) != d.Size || d.Digest.Algorithm().FromBytes(b) != d.Digest {
			t.Errorf("the blob of %v has %d bytes", d, len(b))
		}
		if into != nil {
			if err := json.Unmarshal(b, into); err != nil {
				t.Error(err)
			}
		}
	}
	var index v1.Index
	if err := json.Unmarshal(files[v1.ImageIndexFile], &index); err != nil || len(index.Manifests) != 1 {
		t.Fatal(err, index)
	}
	if ref := index.Manifests[0].Annotations["io.containerd.image.name"]; ref != Image {
		t.Errorf("it is named %q", ref)
	}
	var m v1.Manifest
	var c v1.Image
	blob(index.Manifests[0], &m)
	blob(m.Config, &c)
	if len(m.Layers) != 1 || len(c.RootFS.DiffIDs) != 1 || c.RootFS.DiffIDs[0] != m.Layers[0].Digest {
		t.Errorf("%+v, %+v", m, c)
	}
	blob(m.Layers[0], nil)
}

// A program that needs libraries ended with 255 in the canary, which no one could explain.
func TestAProgramThatNeedsLibrariesIsRefused(t *testing.T) {
	sh, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	if err := static(sh); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("%s: %v", sh, err)
	}
}
