// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// docs/settings.md, "From inside to beside, and back": pods stay while the containerd inside berth
// becomes one of its own process, on the same directories, and back. Nothing is counted as a restart, and
// what ends while there is neither has its exact code.
func TestPodsStayWhileTheirContainerdMovesOutAndBack(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	shared := node.TempDir(t)
	if err := os.Chmod(shared, 0o777); err != nil {
		t.Fatal(err)
	}
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	run := func(name, script string) string {
		c := node.ContainerConfig(name, "sh", "-c", script)
		c.Mounts = []*runtimeapi.Mount{{HostPath: shared, ContainerPath: "/shared"}}
		return n.Run(pod, cfg, c)
	}
	stays := run("stays", `i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done`)
	pid := n.Pid(stays)
	same := func() {
		t.Helper()
		if st := n.Container(stays); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || n.Pid(stays) != pid {
			t.Errorf("it has changed: %v", st)
		}
		resp, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: stays, Cmd: []string{"echo", "42"}, Timeout: 10})
		if err != nil || string(resp.GetStdout()) != "42\n" {
			t.Errorf("exec: %v %v", resp, err)
		}
		had := strings.Count(n.Log(stays), "\n")
		n.Until("its log grows", func() bool { return strings.Count(n.Log(stays), "\n") > had })
	}
	for _, way := range []struct {
		name string
		move func()
	}{{"out", func() { n.Outside(true); n.Until("berth is connected", n.Connected) }}, {"back", n.Inside}} {
		ends := run("ends-"+way.name, `until [ -e /shared/`+way.name+` ]; do sleep 0.01; done; exit 42`)
		was := n.Pid(ends)
		n.Berth.Kill(syscall.SIGTERM)
		if way.name == "back" {
			n.Containerd.Kill(syscall.SIGTERM)
		}
		if err := os.WriteFile(shared+"/"+way.name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		n.Until("it has ended", func() bool { return node.ProcessOver(was) })
		way.move()
		node.ExpectExit(t, n.Measured(ends), 42, "Error")
		same()
		n.Sh("exit 0") // images, and what makes pods, are there
	}
}

// docs/settings.md, the same with a containerd that has other directories: pods do not move, so they
// are removed before. Images are pulled again, but for those that it has.
func TestAnotherContainerdIsUsedOncePodsAreRemoved(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	n.Sh("sleep 1000")
	for images, move := range []func(){func() { n.Outside(false); n.Until("berth is connected", n.Connected) }, n.Inside} {
		n.RemoveAll(t.Context())
		move()
		all, err := n.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
		if err != nil || len(all.GetImages()) != images { // on the way back those are there that were left
			t.Errorf("it has the images %v, %v, want %d", all.GetImages(), err, images)
		}
		n.ImportImage()
		_, id := n.Sh("exit 7")
		if st := n.Measured(id); st.GetExitCode() != 7 {
			t.Errorf("it ended as %v", st)
		}
	}
}

// PROPERTIES 33: containerd.address is changed while there are pods. The other containerd does not know
// them, which is not an answer: they run on, berth says why it is not ready, and their ends are exact. On
// the way back nothing was lost, and nothing is left when they are removed.
func TestThePodsOfAnotherContainerdAreLeftAlone(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	shared := node.TempDir(t)
	if err := os.Chmod(shared, 0o777); err != nil {
		t.Fatal(err)
	}
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	c := node.ContainerConfig("ends", "sh", "-c", "until [ -e /shared/end ]; do sleep 0.01; done; exit 42")
	c.Mounts = []*runtimeapi.Mount{{HostPath: shared, ContainerPath: "/shared"}}
	ends, stays := n.Run(pod, cfg, c), n.Run(pod, cfg, node.ContainerConfig("stays", "sleep", "1000"))
	pid := n.Pid(stays)
	n.Outside(false)
	n.Until("berth says that it is another containerd", func() bool {
		st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(st.GetStatus().GetConditions(), func(c *runtimeapi.RuntimeCondition) bool {
			return c.GetType() == runtimeapi.RuntimeReady && !c.GetStatus() && strings.Contains(c.GetMessage(), "another containerd")
		})
	})
	if err := os.WriteFile(shared+"/end", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	node.ExpectExit(t, n.Ended(ends), 42, "Error")
	n.Inside()
	node.ExpectExit(t, n.Ended(ends), 42, "Error")
	if st := n.Container(stays); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || n.Pid(stays) != pid {
		t.Errorf("it does not run on: %v", st)
	}
	n.RemoveAll(t.Context())
	n.NoLeaks(t.Context())
}
