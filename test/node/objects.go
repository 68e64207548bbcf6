// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
)

var names atomic.Int32

// PodConfig is the configuration of a pod with an unused name.
func (n *Node) PodConfig() *runtimeapi.PodSandboxConfig {
	name := fmt.Sprintf("pod%d", names.Add(1))
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name}, Hostname: name,
		LogDirectory: filepath.Join(n.Dir, "logs", name), Labels: map[string]string{"app": name},
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: n.Cgroup, SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
}

// ContainerConfig is the configuration of a container of Busybox that has a log.
func ContainerConfig(name string, command ...string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: Busybox}, Command: command, LogPath: name + ".log",
		Labels: map[string]string{"container": name},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
			Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
		}},
	}
}

// Pod runs a sandbox and returns its ID.
func (n *Node) Pod(cfg *runtimeapi.PodSandboxConfig) string {
	n.t.Helper()
	resp, err := n.RunPodSandbox(n.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.GetPodSandboxId()
}

// Create makes a container and returns its ID.
func (n *Node) Create(pod string, sandbox *runtimeapi.PodSandboxConfig, cfg *runtimeapi.ContainerConfig) string {
	n.t.Helper()
	resp, err := n.CreateContainer(n.t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: cfg, SandboxConfig: sandbox})
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.GetContainerId()
}

// Run makes a container, starts it, and returns its ID.
func (n *Node) Run(pod string, sandbox *runtimeapi.PodSandboxConfig, cfg *runtimeapi.ContainerConfig) string {
	n.t.Helper()
	id := n.Create(pod, sandbox, cfg)
	if _, err := n.StartContainer(n.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		n.t.Fatal(err)
	}
	return id
}

// Sh runs a shell script in a container in a pod of its own.
func (n *Node) Sh(script string) (pod, id string) {
	n.t.Helper()
	cfg := n.PodConfig()
	pod = n.Pod(cfg)
	return pod, n.Run(pod, cfg, ContainerConfig("c", "sh", "-c", script))
}

// Container is a container's status.
func (n *Node) Container(id string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	st, err := n.ContainerStatus(n.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		n.t.Fatal(err)
	}
	return st.GetStatus()
}

// Ended waits until a container is EXITED.
func (n *Node) Ended(id string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	var st *runtimeapi.ContainerStatus
	n.Until("container "+id+" EXITED", func() bool {
		st = n.Container(id)
		return st.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	return st
}

// Measured waits until a container is EXITED with a code that was measured. If the kernel reports
// no codes, a berth that was away asks the shim. A shim that is slow to answer leaves the code
// unknown until then, because the end itself is told at once.
func (n *Node) Measured(id string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	var st *runtimeapi.ContainerStatus
	n.Until("the code of container "+id, func() bool {
		st = n.Ended(id)
		return st.GetReason() != "Unknown"
	})
	return st
}

// Killed kills the process of a container, and returns the time from then until a client sees that
// the container is EXITED. berth can begin once the kernel reports that the process has ended.
func (n *Node) Killed(id string) Span {
	n.t.Helper()
	fd, err := unix.PidfdOpen(n.Pid(id), 0)
	if err != nil {
		n.t.Fatal(err)
	}
	defer unix.Close(fd)
	ended := make(chan time.Time, 1)
	go func() {
		for {
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); !errors.Is(err, unix.EINTR) {
				ended <- time.Now()
				return
			}
		}
	}()
	s := Span{From: time.Now()}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		n.t.Fatal(err)
	}
	for n.Container(id).GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
		if time.Since(s.From) > time.Minute {
			n.t.Fatalf("container %s is still not EXITED, a minute after its process was killed", id)
		}
		time.Sleep(time.Millisecond)
	}
	s.To = time.Now()
	s.Free = <-ended
	return s
}

// Until waits for a condition, and fails the test if it is not true within a minute.
func (n *Node) Until(what string, ok func() bool) {
	n.t.Helper()
	for range 6000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	n.t.Fatalf("still not: %s\n%s", what, n.waits())
}

// Log is the output of a container, without the stamps of the log format.
func (n *Node) Log(id string) string {
	n.t.Helper()
	b, err := os.ReadFile(n.Container(id).GetLogPath())
	if err != nil {
		n.t.Fatal(err)
	}
	return LogText(n.t, string(b))
}

// LogText is the text of a log, without the stamps of the log format.
func LogText(t testing.TB, log string) string {
	t.Helper()
	var out strings.Builder
	for line := range strings.Lines(log) {
		if !strings.HasSuffix(line, "\n") {
			break // it is being written
		}
		f := strings.SplitN(line, " ", 4)
		if len(f) != 4 {
			t.Fatalf("not a line of a log: %q", line)
		}
		text := f[3]
		if f[2] == "P" {
			text = strings.TrimSuffix(text, "\n")
		}
		out.WriteString(text)
	}
	return out.String()
}

// ExpectExit fails the test unless a container ended with a code and a reason, and was created,
// started and finished in that order.
func ExpectExit(t testing.TB, st *runtimeapi.ContainerStatus, code int32, reason string) {
	t.Helper()
	if st.GetExitCode() != code || st.GetReason() != reason {
		t.Errorf("%s ended with %d %s (%s), want %d %s", st.GetMetadata().GetName(), st.GetExitCode(), st.GetReason(), st.GetMessage(), code, reason)
	}
	if st.GetFinishedAt() < st.GetStartedAt() || st.GetStartedAt() < st.GetCreatedAt() {
		t.Errorf("%s: created %d, started %d, finished %d", st.GetMetadata().GetName(), st.GetCreatedAt(), st.GetStartedAt(), st.GetFinishedAt())
	}
}

// Exact reports whether the kernel reports exit codes here (Linux 6.15).
func (n *Node) Exact() bool {
	n.t.Helper()
	st, err := n.RuntimeServiceClient.Status(n.t.Context(), &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		n.t.Fatal(err)
	}
	return st.GetInfo()["kernelWitnessExact"] == "true"
}

// Bundle is containerd's directory of a container's or pod's task.
func (n *Node) Bundle(id string) string {
	return n.containerdState() + "/io.containerd.runtime.v2.task/k8s.io/" + id
}

// ShimBundle is containerd's directory of the shim of a pod without a process.
func (n *Node) ShimBundle(pod string) string {
	return n.containerdState() + "/io.containerd.sandbox.controller.v1.shim/k8s.io/" + pod
}

func (n *Node) containerdState() string {
	if n.external != "" {
		return n.Dir + "/c"
	}
	return n.Dir + "/run/containerd"
}

// Processes are the command lines of the processes in the pods' groups.
func (n *Node) Processes() []string {
	var found []string
	seen := map[string]bool{}
	for _, g := range n.cgroups("/*") {
		b, _ := os.ReadFile(g + "/cgroup.procs")
		for pid := range strings.FieldsSeq(string(b)) {
			if !seen[pid] {
				seen[pid] = true
				line, _ := os.ReadFile("/proc/" + pid + "/cmdline")
				found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
			}
		}
	}
	return found
}

// Addresses are the files that host-local keeps for addresses that are in use.
func (n *Node) Addresses() []string {
	found, _ := filepath.Glob(n.Dir + "/lib/ipam/*/[0-9]*")
	return found
}

// Pid is the ID of the process of a container that runs.
func (n *Node) Pid(id string) int {
	n.t.Helper()
	resp, err := n.ContainerStatus(n.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		n.t.Fatal(err)
	}
	return n.pidIn(resp.GetInfo(), id)
}

// SandboxPid is the ID of the process of a sandbox that runs.
func (n *Node) SandboxPid(id string) int {
	n.t.Helper()
	resp, err := n.PodSandboxStatus(n.t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		n.t.Fatal(err)
	}
	return n.pidIn(resp.GetInfo(), id)
}

func (n *Node) pidIn(verbose map[string]string, id string) int {
	n.t.Helper()
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(verbose["info"]), &info); err != nil || info.Pid <= 1 {
		n.t.Fatalf("pid %d of %s: %v", info.Pid, id, err)
	}
	return info.Pid
}

// Import imports the images of an archive.
func (n *Node) Import(ctx context.Context, path, ref string) (*berthv1.ImportImagesResponse, error) {
	return n.Control.ImportImages(ctx, &berthv1.ImportImagesRequest{Path: path, Ref: ref})
}

// Timeline returns the timeline of a container or sandbox as JSON without spaces.
func (n *Node) Timeline(ctx context.Context, id string) (string, error) {
	resp, err := n.Client.Node.Timeline(ctx, &berthv1.TimelineRequest{Id: id})
	if err != nil {
		return "", err
	}
	b, err := protojson.Marshal(resp)
	var text bytes.Buffer
	err = errors.Join(err, json.Compact(&text, b)) // protojson puts spaces where it likes
	return text.String(), err
}

// History returns the timeline of a container or sandbox.
func (n *Node) History(id string) []*berthv1.Entry {
	n.t.Helper()
	resp, err := n.Client.Node.Timeline(n.t.Context(), &berthv1.TimelineRequest{Id: id})
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.GetEntries()
}
