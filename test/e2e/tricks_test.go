// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// Each setting of docs/tricks.md turns its trick off, and what berth promises is kept without all of
// them: codes, output and states, through kill -9, and nothing is left of any pod.
func TestBerthWithoutTricks(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		n := node.Start(t, node.Options{External: external, Args: node.WithoutTricks()})
		_, ends := n.Sh(exitOnTerm)
		_, fails := n.Sh("echo to the log; grep ' / / ' /proc/self/mountinfo; exit 3")
		pod, runs := n.Sh("sleep 1000")
		node.ExpectExit(t, n.Ended(fails), 3, "Error")
		if got := n.Log(fails); !strings.HasPrefix(got, "to the log\n") || !strings.Contains(got, "overlay") || strings.Contains(got, "volatile") {
			t.Errorf("the log is %q", got)
		}
		n.Until("the three pods have pause processes", func() bool { return len(pauses(t, n)) == 3 })
		if found := loggers(t, n); len(found) > 0 {
			t.Errorf("loggers run: %q", found)
		}
		if _, err := os.Lstat(n.Dir + "/lib/cleanup"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("there is a script that cleans up: %v", err)
		}

		n.Until("it is ready", func() bool { return n.Log(ends) != "" })
		pid := n.Pid(ends)
		n.Berth.Kill(syscall.SIGKILL)
		term(t, pid)
		n.Until("it has ended", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
		n.StartBerth()
		node.ExpectExit(t, n.Measured(ends), 42, "Error")
		if st := n.Container(runs); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || !isReady(t, n, pod) {
			t.Errorf("%v", st)
		}
		if got := says(t, n, runs, "echo", "here"); got != "here" {
			t.Errorf("exec says %q", got)
		}
		for _, running := range []int{1, 0} {
			list, err := n.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
			if err != nil || len(list.GetContainers()) != 3 || running != inState(list, runtimeapi.ContainerState_CONTAINER_RUNNING) {
				t.Fatalf("%v %v, want %d of 3 running", list, err, running)
			}
			if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: runs}); err != nil {
				t.Fatal(err)
			}
		}
		n.RemoveAll(t.Context())
		n.NoLeaks(t.Context())
	})
}

// loggers lists the processes of a node that keep the pipes of containers.
func loggers(t *testing.T, n *node.Node) (found []string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		if line, _ := os.ReadFile(path); strings.Contains(string(line), "berth-logger") && strings.Contains(string(line), n.Dir) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

func inState(list *runtimeapi.ListContainersResponse, state runtimeapi.ContainerState) (count int) {
	for _, c := range list.GetContainers() {
		if c.GetState() == state {
			count++
		}
	}
	return count
}
