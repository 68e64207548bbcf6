// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/goleak"
)

const gpu = `{"cdiVersion": "0.6.0", "kind": "vendor.com/gpu", "devices": [
	{"name": "0", "containerEdits": {
		"env": ["GPU=0"],
		"mounts": [{"hostPath": "/usr/lib/gpu", "containerPath": "/gpu", "options": ["ro", "bind"]}],
		"deviceNodes": [{"path": "/dev/gpu0", "type": "c", "major": 1, "minor": 3}]}}
]}`

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	tmp := filepath.Join(dir, name+".tmp")
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func empty() *specs.Spec { return &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}} }

func TestADeviceAddsWhatItsSpecificationSays(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "gpu.json", gpu)
	s := empty()
	if err := Open([]string{dir}).Inject(s, []string{"vendor.com/gpu=0"}); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(s.Process.Env, "GPU=0") || len(s.Mounts) != 1 || s.Mounts[0].Destination != "/gpu" ||
		len(s.Linux.Devices) != 1 || s.Linux.Devices[0].Path != "/dev/gpu0" {
		t.Errorf("%+v %+v %+v", s.Process.Env, s.Mounts, s.Linux.Devices)
	}
}

// PROPERTIES 22: what was asked for is given or refused. The error says which device it is, where
// it was looked for and which file may be why.
func TestADeviceThatDoesNotExistIsNamed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "gpu.json", gpu)
	write(t, dir, "net.json", "{")
	s := empty()
	err := Open([]string{dir}).Inject(s, []string{"vendor.com/gpu=0", "vendor.com/gpu=1"})
	if !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	for _, want := range []string{"vendor.com/gpu=1", dir, "net.json"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if len(s.Process.Env)+len(s.Mounts)+len(s.Linux.Devices) > 0 {
		t.Errorf("some of it was injected: %+v", s)
	}
	if err := Open(nil).Inject(s, []string{"vendor.com/gpu=0"}); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "cdi.spec_dirs") {
		t.Error(err)
	}
}

// A null among the mounts of one specification ended berth, and each berth that was started after it.
func TestASpecificationWithANullIsNamed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "gpu.json", gpu)
	for _, list := range []string{"deviceNodes", "netDevices", "hooks", "mounts"} {
		write(t, dir, "net.json", `{"cdiVersion": "1.1.0", "kind": "vendor.com/net", "devices": [{"name": "0", "containerEdits": {"`+list+`": [null]}}]}`)
		r := Open([]string{dir})
		if err := r.Inject(empty(), []string{"vendor.com/gpu=0"}); err != nil {
			t.Errorf("%s: the device of another file: %v", list, err)
		}
		if err := r.Inject(empty(), []string{"vendor.com/net=0"}); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), list+" is null") {
			t.Errorf("%s: %v", list, err)
		}
	}
}

func TestASpecificationWrittenJustBeforeCounts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cdi") // it does not exist at first
	r := Open([]string{dir})
	if err := r.Inject(empty(), []string{"vendor.com/gpu=0"}); !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "gpu.json", gpu)
	if err := r.Inject(empty(), []string{"vendor.com/gpu=0"}); err != nil {
		t.Fatal(err)
	}
}

func TestAChangedSpecificationIsNoticed(t *testing.T) {
	before := goleak.IgnoreCurrent()
	dir := t.TempDir()
	write(t, dir, "gpu.json", gpu)
	r := Open([]string{dir})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	changed := strings.Replace(gpu, "GPU=0", "GPU=zero", 1)
	for i := 0; ; i++ { // it is written until Run watches
		write(t, dir, "gpu.json", changed)
		s := empty()
		if err := r.Inject(s, []string{"vendor.com/gpu=0"}); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(s.Process.Env, "GPU=zero") {
			break
		}
		if i > 10000 {
			t.Fatalf("still %q", s.Process.Env)
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	goleak.VerifyNone(t, before)
}
