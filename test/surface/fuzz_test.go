// SPDX-License-Identifier: Apache-2.0

package surface

import (
	"context"
	"encoding/binary"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/cri138"
	"berth/internal/serve/cri"
)

// calls are requests one after the other, in a form that a fuzzer can cut and join: for each call a
// byte that chooses the method, two bytes for the length, and the request in wire format.
type calls []byte

// add adds a call.
func (c calls) add(method string, m proto.Message) calls {
	wire, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	for i, d := range Methods() {
		if string(d.Name()) == method {
			c = append(c, byte(i))
			c = binary.BigEndian.AppendUint16(c, uint16(len(wire)))
			return append(c, wire...)
		}
	}
	panic("there is no method " + method)
}

// next takes the first call off.
func (c calls) next() (method string, wire []byte, rest calls) {
	all := Methods()
	method, c = string(all[int(c[0])%len(all)].Name()), c[1:]
	if len(c) < 2 {
		return method, nil, nil
	}
	n := min(int(binary.BigEndian.Uint16(c)), len(c)-2)
	return method, c[2 : 2+n], c[2+n:]
}

// maxCalls bounds the calls of one input.
const maxCalls = 16

// requests are what clients really send, and what is refused, one or a few for each method.
func requests() []calls {
	var seeds []calls
	for _, m := range Methods() {
		seeds = append(seeds, calls{}.add(string(m.Name()), dynamicpb.NewMessage(m.Input())))
	}
	for _, r := range Rows() {
		if r.Fate == Refused {
			seeds = append(seeds, calls{}.add(strings.TrimSuffix(string(r.Request.ProtoReflect().Descriptor().Name()), "Request"), r.Request))
		}
	}
	one := func(method string, m proto.Message) { seeds = append(seeds, calls{}.add(method, m)) }
	one("RunPodSandbox", run(func(c *runtimeapi.PodSandboxConfig) {
		c.LogDirectory = "/var/log/pods/x"
		c.DnsConfig = &runtimeapi.DNSConfig{Servers: []string{"10.0.0.1"}, Searches: []string{"a.b"}, Options: []string{"ndots:5"}}
		c.PortMappings = []*runtimeapi.PortMapping{{HostPort: 80, ContainerPort: 8080, HostIp: "127.0.0.1"}}
		c.Labels = map[string]string{"k": "v"}
		c.Annotations = map[string]string{"kubernetes.io/egress-bandwidth": "10M"}
		c.Linux.CgroupParent = "/kubepods/pod1"
		c.Linux.Sysctls = map[string]string{"net.ipv4.ip_forward": "1"}
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{CpuShares: 2, MemoryLimitInBytes: 1 << 20}
		c.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 1000}
	}))
	one("RunPodSandbox", run(func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{}
		c.Linux.SecurityContext.Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "p"}
	}))
	for range 3 { // most of the others are refused: what is made is to be found, too
		one("RunPodSandbox", run(func(*runtimeapi.PodSandboxConfig) {}))
		one("CreateContainer", create(func(*runtimeapi.ContainerConfig) {}))
	}
	one("CreateContainer", create(func(c *runtimeapi.ContainerConfig) {
		c.Command, c.Args, c.WorkingDir = []string{"/x"}, []string{"y"}, "/w"
		c.Envs = []*runtimeapi.KeyValue{{Key: "K", Value: []byte("v")}}
		c.Mounts = []*runtimeapi.Mount{{
			ContainerPath: "/data",
			HostPath:      "/tmp",
			Readonly:      true,
			Propagation:   runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
			MountOptions:  []string{"nosuid"},
		}}
		c.Devices = []*runtimeapi.Device{{HostPath: "/dev/null", ContainerPath: "/dev/x", Permissions: "rwm"}}
		c.Annotations, c.LogPath, c.Stdin, c.StdinOnce, c.Tty = map[string]string{"a": "b"}, "c/0.log", true, true, true
		c.StopSignal = runtimeapi.Signal_SIGNAL_SIGRTMINPLUS3
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{
			CpuPeriod:              100000,
			CpuQuota:               50000,
			MemoryLimitInBytes:     1 << 20,
			MemorySwapLimitInBytes: 1 << 20,
			OomScoreAdj:            -997,
			CpusetCpus:             "0-1",
			HugepageLimits:         []*runtimeapi.HugepageLimit{{PageSize: "2MB"}},
			Unified:                map[string]string{"memory.high": "max"},
		}
		sec := c.Linux.SecurityContext
		sec.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"CHOWN"}, DropCapabilities: []string{"ALL"}}
		sec.RunAsUser, sec.SupplementalGroups = &runtimeapi.Int64Value{Value: 1}, []int64{2}
		sec.MaskedPaths, sec.ReadonlyPaths = []string{"/proc/kcore"}, []string{"/proc/sys"}
		sec.SelinuxOptions = &runtimeapi.SELinuxOption{Type: "spc_t", Level: "s0:c1,c2"}
	}))
	target := create(func(c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid, c.Linux.SecurityContext.NamespaceOptions.TargetId = runtimeapi.NamespaceMode_TARGET, "runs"
	})
	one("CreateContainer", target)
	life := calls{}
	for _, id := range []string{"created", "runs"} {
		one("ContainerStatus", &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
		one("ReopenContainerLog", &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
		one("ExecSync", &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}, Timeout: 1})
		one("Exec", &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"true"}, Stdout: true})
		one("Attach", &runtimeapi.AttachRequest{ContainerId: id, Stdout: true})
		one("ContainerStats", &runtimeapi.ContainerStatsRequest{ContainerId: id})
		one("UpdateContainerResources", &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: id,
			Linux:       &runtimeapi.LinuxContainerResources{CpuShares: 2},
		})
		one("CheckpointContainer", &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: "/nonexistent/x.tar"})
		one("CheckpointPod", &runtimeapi.CheckpointPodRequest{PodSandboxId: "pod", OutputPath: "/proc", ContainerIds: []string{id}})
		life = life.add("StartContainer", &runtimeapi.StartContainerRequest{ContainerId: id}).
			add("StopContainer", &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 1}).
			add("RemoveContainer", &runtimeapi.RemoveContainerRequest{ContainerId: id})
	}
	life = life.add("StopPodSandbox", &runtimeapi.StopPodSandboxRequest{PodSandboxId: "pod"}).
		add("RemovePodSandbox", &runtimeapi.RemovePodSandboxRequest{PodSandboxId: "pod"})
	seeds = append(seeds, life)
	one("PodSandboxStatus", &runtimeapi.PodSandboxStatusRequest{PodSandboxId: "pod", Verbose: true})
	one("PodSandboxStats", &runtimeapi.PodSandboxStatsRequest{PodSandboxId: "pod"})
	one("PortForward", &runtimeapi.PortForwardRequest{PodSandboxId: "pod", Port: []int32{80}})
	one("UpdatePodSandboxResources", &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: "pod"})
	one("ListContainers", &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		PodSandboxId:  "pod",
		State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{"name": "runs"},
	}})
	one("RestorePod", &runtimeapi.RestorePodRequest{
		CheckpointPath:   "/nonexistent",
		Config:           run(func(*runtimeapi.PodSandboxConfig) {}).GetConfig(),
		ContainerConfigs: []*runtimeapi.ContainerConfig{create(func(*runtimeapi.ContainerConfig) {}).GetConfig()},
	})
	one("Status", &runtimeapi.StatusRequest{Verbose: true})
	one("PullImage", &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: "registry.example/other:1", RuntimeHandler: "runc"},
		Auth:  &runtimeapi.AuthConfig{Auth: "dTpw", ServerAddress: "https://registry.example"},
	})
	one("PullSecurityProfile", &cri138.PullSecurityProfileRequest{
		Image:       &runtimeapi.ImageSpec{Image: "registry.example/profile@sha256:" + strings.Repeat("ab", 32), RuntimeHandler: "runc"},
		ProfileKind: cri138.SecurityProfileKind_Seccomp,
	})
	one("CreateContainer", create(func(c *runtimeapi.ContainerConfig) {
		sec := c.Linux.SecurityContext
		sec.Seccomp = with(&runtimeapi.SecurityProfile{ProfileType: cri138.SecurityProfile_OCI}, &cri138.SecurityProfile{
			OciRef:      "registry.example/profile@sha256:" + strings.Repeat("ab", 32),
			BaseProfile: &cri138.SecurityProfileBase{Type: cri138.SecurityProfileBase_Localhost, LocalhostRef: "/nonexistent"},
		})
		with(sec, &cri138.LinuxContainerSecurityContext{CgroupMountMode: cri138.CgroupMountMode_CGROUP_MOUNT_MODE_READ_ONLY})
		with(sec.NamespaceOptions, &cri138.NamespaceOption{CgroupnsOptions: &cri138.CgroupNamespace{Mode: runtimeapi.NamespaceMode_CONTAINER}})
	}))
	one("ImageStatus", &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "registry.example/app:1"}, Verbose: true})
	return seeds
}

// Whatever a client sends, no call panics or hangs, and none blames berth for what the client got
// wrong: the codes Unknown and Internal are for what nobody has thought of. PROPERTIES 22.
func FuzzCalls(f *testing.F) {
	for _, s := range requests() {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			for rest, i := calls(input), 0; len(rest) > 0 && i < maxCalls; i++ {
				var method string
				var wire []byte
				method, wire, rest = rest.next()
				n.expectReason(method, wire)
			}
		})
	})
}

// expectReason makes a call and fails unless it ends within its time, with a code that says what is
// wrong.
func (n *node) expectReason(method string, wire []byte) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), timeout)
	defer cancel()
	sent, err := n.call(ctx, method, wire)
	if !sent {
		return // it is not a request: gRPC answers for itself
	}
	switch code := cri.Code(err); code {
	case codes.Unknown, codes.Internal, codes.DataLoss, codes.Canceled:
		n.t.Errorf("%s: %s: %v\n%s", method, code, err, readable(method, wire))
	case codes.DeadlineExceeded:
		if !mayTakeLong(method, wire) {
			n.t.Errorf("%s hangs: %v\n%s", method, err, readable(method, wire))
		}
	}
}

// mayTakeLong reports whether a call goes on for as long as its client asked for.
func mayTakeLong(method string, wire []byte) bool {
	switch method {
	case "GetContainerEvents":
		return true
	case "StopContainer": // it waits before it kills
		var req runtimeapi.StopContainerRequest
		return proto.Unmarshal(wire, &req) == nil && req.GetTimeout() > int64(timeout.Seconds()/2)
	}
	return false
}

// readable is a request for people.
func readable(method string, wire []byte) string {
	for _, d := range Methods() {
		if string(d.Name()) == method {
			m := dynamicpb.NewMessage(d.Input())
			if err := proto.Unmarshal(wire, m); err != nil {
				return err.Error()
			}
			return prototext.Format(m)
		}
	}
	return ""
}
