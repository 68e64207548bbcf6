// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"
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
	if err := (Registry{dir}).Inject(s, []string{"vendor.com/gpu=0"}); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(s.Process.Env, "GPU=0") || len(s.Mounts) != 1 || s.Mounts[0].Destination != "/gpu" ||
		len(s.Linux.Devices) != 1 || s.Linux.Devices[0].Path != "/dev/gpu0" {
		t.Errorf("%+v %+v %+v", s.Process.Env, s.Mounts, s.Linux.Devices)
	}
}

// An empty list of directories stood for those of the library, /etc/cdi among them.
func TestWithoutDirectoriesThereAreNoDevices(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "gpu.json", gpu)
	usual := cdi.DefaultSpecDirs
	t.Cleanup(func() { cdi.DefaultSpecDirs = usual })
	cdi.DefaultSpecDirs = []string{dir}
	if err := Registry(nil).Inject(empty(), []string{"vendor.com/gpu=0"}); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
}

// PROPERTIES 22: what was asked for is given or refused. The error says which device it is, where
// it was looked for and which file may be why.
func TestADeviceThatDoesNotExistIsNamed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "gpu.json", gpu)
	write(t, dir, "net.json", "{")
	s := empty()
	err := Registry{dir}.Inject(s, []string{"vendor.com/gpu=0", "vendor.com/gpu=1"})
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
	if err := Registry(nil).Inject(s, []string{"vendor.com/gpu=0"}); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "cdi.spec_dirs") {
		t.Error(err)
	}
}

// A null among the mounts of one specification ended berth, and each berth that was started after
// it.
func TestASpecificationWithANullIsNamed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "gpu.json", gpu)
	for _, list := range []string{"deviceNodes", "netDevices", "hooks", "mounts"} {
		write(t, dir, "net.json", `{"cdiVersion": "1.1.0", "kind": "vendor.com/net", "devices": [{"name": "0", "containerEdits": {"`+list+`": [null]}}]}`)
		r := Registry{dir}
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
	r := Registry{dir}
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

func TestAChangedSpecificationCounts(t *testing.T) {
	dir := t.TempDir()
	for _, value := range []string{"0", "zero"} {
		write(t, dir, "gpu.json", strings.Replace(gpu, "GPU=0", "GPU="+value, 1))
		s := empty()
		if err := (Registry{dir}).Inject(s, []string{"vendor.com/gpu=0"}); err != nil || !slices.Contains(s.Process.Env, "GPU="+value) {
			t.Errorf("%q: %v", s.Process.Env, err)
		}
	}
}

// A FIFO that is named like a specification kept berth from its start, without a word, and later
// each container with a device from being made.
func TestAFIFOInPlaceOfASpecificationIsNotWaitedFor(t *testing.T) {
	good, bad := t.TempDir(), t.TempDir()
	write(t, good, "gpu.json", gpu)
	fifo := filepath.Join(bad, "net.yaml")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	r := Registry{bad, good}
	if err := r.Inject(empty(), []string{"vendor.com/gpu=0"}); err != nil {
		t.Errorf("the device of another directory: %v", err)
	}
	if err := r.Inject(empty(), []string{"vendor.com/net=0"}); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), fifo) {
		t.Error(err)
	}
}
