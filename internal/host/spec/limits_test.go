// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A request that is larger than any use of it is refused before anything is made, and in words.
func TestRequestsBeyondTheirLimitsAreRefused(t *testing.T) {
	big := strings.Repeat("x", MaxLabels)
	for name, edit := range map[string]func(*runtimeapi.ContainerConfig){
		"labels":       func(c *runtimeapi.ContainerConfig) { c.Labels = map[string]string{"a": big} },
		"annotations":  func(c *runtimeapi.ContainerConfig) { c.Annotations = map[string]string{"a": big} },
		"mounts":       func(c *runtimeapi.ContainerConfig) { c.Mounts = make([]*runtimeapi.Mount, MaxMounts+1) },
		"devices":      func(c *runtimeapi.ContainerConfig) { c.Devices = make([]*runtimeapi.Device, MaxDevices+1) },
		"masked_paths": func(c *runtimeapi.ContainerConfig) { c.Linux.SecurityContext.MaskedPaths = make([]string, MaxPaths+1) },
		"readonly_paths": func(c *runtimeapi.ContainerConfig) {
			c.Linux.SecurityContext.ReadonlyPaths = make([]string, MaxPaths+1)
		},
		"permissions": func(c *runtimeapi.ContainerConfig) {
			c.Devices = []*runtimeapi.Device{{HostPath: "/dev/null", ContainerPath: "/dev/null", Permissions: "rwx"}}
		},
		"container_path": func(c *runtimeapi.ContainerConfig) {
			c.Devices = []*runtimeapi.Device{{HostPath: "/dev/null", ContainerPath: "/dev/../../x", Permissions: "r"}}
		},
		"host_path": func(c *runtimeapi.ContainerConfig) {
			c.Devices = []*runtimeapi.Device{{HostPath: "dev/null", ContainerPath: "/dev/null", Permissions: "r"}}
		},
		"config": func(c *runtimeapi.ContainerConfig) { c.Args = []string{strings.Repeat("x", MaxConfig)} },
	} {
		in := input()
		edit(in.Config)
		err := CheckContainer(in.Config)
		refused(t, name, err)
		if err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named: %v", name, err)
		}
	}
	if err := CheckContainer(input().Config); err != nil {
		t.Error(err)
	}
	refused(t, "sandbox", CheckSandbox(&runtimeapi.PodSandboxConfig{Labels: map[string]string{"a": big}}))
}

// execve(2) answers E2BIG only once everything was made.
func TestArgumentsThatTheKernelDoesNotTakeAreRefused(t *testing.T) {
	in := input()
	in.Config.Args = []string{strings.Repeat("x", maxExecString)}
	_, _, err := ForContainer(host(), in)
	refused(t, "one argument", err)
	in = input()
	for i := range 60 {
		in.Config.Envs = append(in.Config.Envs, &runtimeapi.KeyValue{Key: fmt.Sprint("K", i), Value: slices.Repeat([]byte("x"), 120<<10)})
	}
	_, _, err = ForContainer(host(), in)
	refused(t, "the environment", err)
}

// The OCI runtime reads a specification in JSON, so that a container got other bytes than those of
// the request: a value of a variable is bytes in CRI, and the home directory is what /etc/passwd
// has.
func TestWhatIsNotUTF8IsRefusedByItsName(t *testing.T) {
	for want, edit := range map[string]func(*Container){
		`envs: "SECRET" is not UTF-8`: func(in *Container) {
			in.Config.Envs = []*runtimeapi.KeyValue{{Key: "SECRET", Value: []byte("a\xffb")}}
		},
		`envs: "HOME" is not UTF-8`: func(in *Container) {
			in.Passwd = []byte("root:x:0:0:root:/r\xf6\xf6t:/bin/sh\n")
		},
		`args: "a\xff" is not UTF-8`: func(in *Container) { in.Image.Entrypoint, in.Config.Command = []string{"a\xff"}, nil },
	} {
		in := input()
		edit(&in)
		_, _, err := ForContainer(host(), in)
		refused(t, want, err)
		if err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not named: %v", want, err)
		}
	}
}

// A directory of devices counts as many as it has.
func TestADirectoryOfDevicesIsBounded(t *testing.T) {
	in := input()
	in.Config.Devices = []*runtimeapi.Device{{HostPath: "/dev/many", ContainerPath: "/dev/mine", Permissions: "rw"}}
	in.Devices = func(string) ([]Device, error) {
		return []Device{{Path: "/dev/many/a", Type: "c"}, {Path: "/dev/many/b", Type: "c"}}, nil
	}
	s := make1(t, in)
	if len(s.Linux.Devices) != 2 || s.Linux.Devices[1].Path != "/dev/mine/b" {
		t.Errorf("%+v", s.Linux.Devices)
	}
	in.Devices = func(string) ([]Device, error) { return make([]Device, MaxDevices+1), nil }
	_, _, err := ForContainer(host(), in)
	refused(t, "too many", err)
}

// What a container may open or lock must not depend on who started berth.
func TestResourceLimitsAreNotInherited(t *testing.T) {
	limit := func(s *specs.Spec, name string) specs.POSIXRlimit {
		for _, l := range s.Process.Rlimits {
			if l.Type == name {
				return l
			}
		}
		t.Errorf("%s is inherited", name)
		return specs.POSIXRlimit{}
	}
	s := make1(t, input())
	if l := limit(s, "RLIMIT_NOFILE"); l.Soft != 1024 || l.Hard != 524288 {
		t.Errorf("%+v", l)
	}
	if l := limit(s, "RLIMIT_NPROC"); l.Soft != unlimited || l.Hard != unlimited {
		t.Errorf("%+v", l)
	}
	// Without CAP_SYS_RESOURCE berth cannot set a higher limit than its own, and no container would
	// start.
	h := host()
	h.MaxRlimits = map[string]uint64{"RLIMIT_NOFILE": 512, "RLIMIT_NPROC": 4096}
	s, _, err := ForContainer(h, input())
	if err != nil {
		t.Fatal(err)
	}
	if l := limit(s, "RLIMIT_NOFILE"); l.Soft != 512 || l.Hard != 512 {
		t.Errorf("%+v", l)
	}
	if l := limit(s, "RLIMIT_NPROC"); l.Hard != 4096 {
		t.Errorf("%+v", l)
	}
	own, err := readMaxRlimits()
	if err != nil || len(own) != len(baseRlimits) {
		t.Errorf("%v %v", own, err)
	}
}

// A label of a pod that was taken for berth's own gave the container to another berth, or kept
// containerd from collecting what it belongs to.
func TestLabelsOfPodsDoNotSpeakForBerth(t *testing.T) {
	got := ObjectLabels(map[string]string{
		"io.berth.owner":                    "other",
		"io.cri-containerd.kind":            "sandbox",
		"io.cri-containerd.image":           "managed",
		"containerd.io/gc.root":             "x",
		"io.containerd.image.config.x":      "y",
		"app":                               "mine",
		"io.kubernetes.pod.name":            "p",
		"long":                              strings.Repeat("x", maxLabel),
		"containerd.io.is-not-containerd's": "z",
	}, KindContainer)
	want := map[string]string{
		"app":                               "mine",
		"io.kubernetes.pod.name":            "p",
		"containerd.io.is-not-containerd's": "z",
		LabelKind:                           KindContainer,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
