// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/tools/drill"
)

// manifest is a pod whose containers end in every way. contrib/pods/demo.yaml is the same.
//
//go:embed pod.yaml
var manifest string

// end is how a container has to end.
type end struct{ name, how string }

// eatsMemory is the container that needs a limit of its memory.
const eatsMemory = "eats-memory"

// expected is how each container has to end, in the order of the manifest.
var expected = []end{
	{"ends-well", "0 Completed"},
	{"ends-with-42", "42 Error"},
	{eatsMemory, "137 OOMKilled"},
	{"is-stopped", "0 Completed"},
}

// show runs the pod and prints how its containers end.
func show(ctx context.Context, s *service) error {
	_, pod, _ := strings.Cut(manifest, "apiVersion") // without the comment
	text, expected := "apiVersion"+strings.ReplaceAll(pod, "IMAGE", Name), expected
	if !canLimitMemory() {
		fmt.Fprintln(s.Out, "memory cannot be limited, as no memory controller was delegated: no container runs out of it")
		text = strings.Join(slices.DeleteFunc(strings.SplitAfter(text, "\n"), func(line string) bool { return strings.Contains(line, eatsMemory) }), "")
		expected = slices.DeleteFunc(slices.Clone(expected), func(e end) bool { return e.name == eatsMemory })
	}
	fmt.Fprintf(s.Out, "this pod is run:\n\n%s\n", text)
	pod = filepath.Join(s.dir, "pod.yaml")
	if err := os.WriteFile(pod, []byte(text), 0o600); err != nil {
		return err
	}
	if err := s.berth(ctx, "import", s.Image); err != nil {
		return err
	}
	visible, err := drill.WatchExits(ctx, s.Client)
	if err != nil {
		return err
	}
	defer removePods(s.Client)
	if err := s.berth(ctx, "play", pod, "--log-dir", filepath.Join(s.dir, "logs"), "--volume-dir", filepath.Join(s.dir, "volumes")); err != nil {
		return err
	}
	ids, err := containers(ctx, s.Client)
	if err != nil {
		return err
	}
	for _, e := range expected[:len(expected)-1] { // the last one runs until it is stopped
		if _, err := drill.Ended(ctx, s.Client, ids[e.name]); err != nil {
			return err
		}
	}
	if err := s.berth(ctx, "stop", "is-stopped"); err != nil {
		return err
	}
	if err := table(ctx, s.Out, s.Client, expected, ids, visible); err != nil {
		return err
	}
	if err := s.berth(ctx, "rm", "--force", "demo", "--volume-dir", filepath.Join(s.dir, "volumes")); err != nil {
		return err
	}
	return s.berth(ctx, "images", "rm", Name)
}

// table prints a line for each container, and fails if one did not end as expected.
func table(ctx context.Context, out io.Writer, c runtimeapi.RuntimeServiceClient, expected []end, ids map[string]string, visible *drill.Exits) error {
	const format = "%-14s %-8s %5v  %-10s %-22s  %s\n"
	fmt.Fprintln(out)
	fmt.Fprintf(out, format, "CONTAINER", "STATE", "CODE", "REASON", "VISIBLE AFTER ITS END", "LOG")
	for _, e := range expected {
		st, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: ids[e.name]})
		if err != nil {
			return err
		}
		s := st.GetStatus()
		state := strings.TrimPrefix(s.GetState().String(), "CONTAINER_")
		at, ok := visible.At(s.GetId())
		if !ok {
			return fmt.Errorf("container %s ended, and no event has said so", e.name)
		}
		lag := at.Sub(time.Unix(0, s.GetFinishedAt())).Round(10 * time.Microsecond)
		fmt.Fprintf(out, format, e.name, state, s.GetExitCode(), s.GetReason(), lag, lastLine(s.GetLogPath()))
		if how := fmt.Sprintf("%d %s", s.GetExitCode(), s.GetReason()); how != e.how {
			return fmt.Errorf("container %s ended with %s instead of %s", e.name, how, e.how)
		}
	}
	return nil
}

// canLimitMemory reports whether the limit of a container's memory is kept here. A user may have a
// cgroup without the memory controller.
func canLimitMemory() bool {
	controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	// without that file it is cgroup v1
	return err != nil || slices.Contains(strings.Fields(string(controllers)), "memory")
}

// containers are the IDs of all containers by name.
func containers(ctx context.Context, c runtimeapi.RuntimeServiceClient) (map[string]string, error) {
	list, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	ids := map[string]string{}
	for _, ct := range list.GetContainers() {
		ids[ct.GetMetadata().GetName()] = ct.GetId()
	}
	return ids, nil
}

// removePods removes the pods that a failed demo left running.
func removePods(c runtimeapi.RuntimeServiceClient) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	pods, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return
	}
	for _, p := range pods.GetItems() {
		_, _ = c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.GetId()})
	}
}

// display is a command line without the temporary directory.
func display(dir string, args []string) string {
	return strings.ReplaceAll(strings.Join(args, " "), dir+"/", "")
}

// lastLine is the text of the last line of a CRI log, whose fields are TIME STREAM TAG TEXT.
func lastLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if f := strings.SplitN(lines[len(lines)-1], " ", 4); len(f) == 4 {
		return f[3]
	}
	return ""
}
