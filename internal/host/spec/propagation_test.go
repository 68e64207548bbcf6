// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PROPERTIES 22: a container whose mounts could not propagate started without a word.
func TestPropagationIsGivenOrRefused(t *testing.T) {
	on := map[string]MountPoint{
		"/private": {Path: "/"},
		"/slave":   {Path: "/slave", Slave: true},
		"/shared":  {Path: "/shared", Shared: true},
		"/both":    {Path: "/both", Shared: true, Slave: true},
	}
	h := host()
	h.MountAt = func(path string) (MountPoint, error) {
		if m, ok := on[path]; ok {
			return m, nil
		}
		return MountPoint{}, unix.EMFILE
	}
	const (
		private  = runtimeapi.MountPropagation_PROPAGATION_PRIVATE
		fromHost = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		both     = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	)
	for _, tt := range []struct {
		path        string
		propagation runtimeapi.MountPropagation
		refused     string
	}{
		{"/private", private, ""},
		{"/private", fromHost, "HostToContainer: host_path /private is on /, which is neither a shared nor a slave mount"},
		{"/private", both, "Bidirectional: host_path /private is on /, which is not a shared mount; run `mount --make-rshared /`"},
		{"/slave", fromHost, ""},
		{"/slave", both, "not a shared mount"},
		{"/shared", fromHost, ""},
		{"/shared", both, ""},
		{"/both", fromHost, ""},
		{"/both", both, ""},
		{"/unknown", private, ""},
	} {
		in := input()
		in.Config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/in", HostPath: tt.path, Propagation: tt.propagation}}
		_, _, err := ForContainer(h, in)
		switch {
		case tt.refused != "":
			expectRefusal(t, err, tt.refused)
		case err != nil:
			t.Errorf("%s, %s: %v", tt.path, tt.propagation, err)
		}
	}
	in := input()
	in.Config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/in", HostPath: "/unknown", Propagation: both}}
	if _, _, err := ForContainer(h, in); !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "/unknown") {
		t.Errorf("what could not be looked at: %v", err)
	}
}

// The kernel's list is read as it is here: the root is on a mount, and /proc/self on /proc.
func TestTheMountOfAPathIsFound(t *testing.T) {
	link := t.TempDir() + "/link"
	if err := os.Symlink("/proc/self", link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/": "/", "/proc": "/proc", "/proc/self/": "/proc", link: "/proc"} {
		if m, err := mountAt(path); err != nil || m.Path != want {
			t.Errorf("%s is on %+v: %v", path, m, err)
		}
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); f[4] == "/proc" {
			m, err := mountAt("/proc")
			tags := strings.Join(f[6:], " ")
			if err != nil || m.Shared != strings.Contains(tags, "shared:") || m.Slave != strings.Contains(tags, "master:") {
				t.Errorf("%+v, %v: %s", m, err, line)
			}
		}
	}
	if _, err := mountAt("/not there"); !errors.Is(err, os.ErrNotExist) {
		t.Error(fmt.Errorf("a path that does not exist: %w", err))
	}
}
