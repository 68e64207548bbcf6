// SPDX-License-Identifier: Apache-2.0

package surface

import (
	"encoding/json"
	"path"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/spec"
	"berth/internal/serve/cri"
)

// hosts are what berth may run on, from one that can do little to one that can do much.
func hosts() []spec.Host {
	devices := func() []spec.Device { return nil }
	return []spec.Host{
		{Capabilities: []string{"CAP_CHOWN"}, MinOOMScoreAdj: 0, Devices: devices},
		{
			CgroupV2:          true,
			Seccomp:           true,
			AppArmorDefault:   "berth-default",
			AppArmorLoaded:    func(profile string) (bool, error) { return len(profile)%2 == 0, nil },
			Capabilities:      []string{"CAP_CHOWN", "CAP_SYS_ADMIN"},
			SwapAccounting:    true,
			RecursiveReadOnly: true,
			HugePages:         []string{"2MB"},
			MinOOMScoreAdj:    -1000,
			Devices:           devices,
		},
	}
}

// Requests at random become specifications in which nothing is outside the container, or errors
// that say what is wrong. PROPERTIES 22.
func TestSpecificationsOfRequestsAtRandom(t *testing.T) {
	from, all := requests(), hosts()
	made := map[string]int{}
	for seed := *fromSeed; seed < *fromSeed+uint64(*atRandom); seed++ {
		method, wire := randomCall(seed, from)
		host := all[seed%uint64(len(all))]
		var s *specs.Spec
		var err error
		switch method {
		case "CreateContainer":
			s, err = containerSpec(host, wire)
		case "RunPodSandbox":
			s, err = sandboxSpec(host, wire)
		default:
			continue
		}
		if err == nil {
			made[method]++
			checkSpec(t, s)
		} else if c := cri.Code(err); c == codes.Unknown || c == codes.Internal {
			t.Errorf("%s: %v\n%s", c, err, readable(method, wire))
		}
		if t.Failed() {
			t.Fatalf("to play it again: go test ./test/surface -run Specifications -args -seed %d -requests 1", seed)
		}
	}
	if *atRandom >= 1000 && (made["CreateContainer"] == 0 || made["RunPodSandbox"] == 0) {
		t.Errorf("only these were made: %v", made)
	}
}

func containerSpec(h spec.Host, wire []byte) (*specs.Spec, error) {
	var req runtimeapi.CreateContainerRequest
	if err := proto.Unmarshal(wire, &req); err != nil {
		return nil, err
	}
	if err := spec.CheckContainer(req.GetConfig()); err != nil {
		return nil, err
	}
	s, _, err := spec.ForContainer(h, spec.Container{
		ID:         "c",
		SandboxID:  "p",
		SandboxPID: 7,
		TargetPID:  8,
		Config:     req.GetConfig(),
		Sandbox:    run(func(*runtimeapi.PodSandboxConfig) {}).GetConfig(),
		Image:      ocispec.ImageConfig{Cmd: []string{"/app"}, User: "app"},
		ImageName:  "app",
		Passwd:     []byte("app:x:1000:1000::/home/app:/bin/sh\n"),
		Group:      []byte("app:x:1000:\n"),
		NetNS:      "/run/netns/p",
		Hostname:   "h",
		Files:      map[string]string{"/etc/hosts": "/pod/hosts"},
		Volumes:    map[string]string{"/volume": "/volumes/0"},
		Devices: func(p string) ([]spec.Device, error) {
			return []spec.Device{{Path: p, Type: "c", Major: 1, Minor: 3}}, nil
		},
		Profiles: spec.Profiles{Local: func(string) (*specs.LinuxSeccomp, error) { return nil, errdefs.ErrInvalidArgument }},
	})
	return s, err
}

func sandboxSpec(h spec.Host, wire []byte) (*specs.Spec, error) {
	var req runtimeapi.RunPodSandboxRequest
	if err := proto.Unmarshal(wire, &req); err != nil {
		return nil, err
	}
	if err := spec.CheckSandbox(req.GetConfig()); err != nil {
		return nil, err
	}
	s, _, err := spec.ForSandbox(h, spec.Sandbox{
		ID:       "p",
		Config:   req.GetConfig(),
		NetNS:    "/run/netns/p",
		Pause:    spec.Pause{Rootfs: "/pause", Args: []string{"/pause"}},
		Profiles: spec.Profiles{Local: func(string) (*specs.LinuxSeccomp, error) { return nil, errdefs.ErrInvalidArgument }},
	})
	return s, err
}

// checkSpec fails for a specification that no request may lead to.
func checkSpec(t *testing.T, s *specs.Spec) {
	t.Helper()
	bare := *s
	bare.Annotations = nil // texts that nothing interprets
	b, err := json.Marshal(bare)
	if err != nil {
		t.Error(err)
	}
	if strings.Contains(string(b), `\u0000`) {
		t.Errorf("a zero byte: %s", b)
	}
	if !path.IsAbs(s.Process.Cwd) || len(s.Process.Args) == 0 {
		t.Errorf("process %+v", s.Process)
	}
	if c := s.Process.Capabilities; len(c.Inheritable) > len(c.Ambient) {
		t.Errorf("inheritable capabilities %v", c.Inheritable)
	}
	if !strings.Contains(s.Linux.CgroupsPath, s.Annotations["io.kubernetes.cri.sandbox-id"]) && !strings.HasSuffix(s.Linux.CgroupsPath, "c") {
		t.Errorf("cgroup %q", s.Linux.CgroupsPath)
	}
	for _, m := range s.Mounts {
		if m.Destination != path.Clean(m.Destination) || !path.IsAbs(m.Destination) || m.Destination == "/" {
			t.Errorf("mount %+v", m)
		}
	}
	for _, d := range s.Linux.Devices {
		if !path.IsAbs(d.Path) || strings.Contains(d.Path, "..") {
			t.Errorf("device %+v", d)
		}
	}
}
