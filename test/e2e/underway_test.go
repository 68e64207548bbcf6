// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/test/node"
)

// PROPERTIES 65: incidents are planted, and the tools name each of them while it lasts: a CNI plug-in that
// hangs in ADD and in DEL, a registry that does not answer, a grace period, a command such as that
// of a postStart hook, and a creation that is refused early.
func TestTheToolsNameWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	gate := t.TempDir()
	n := node.Start(t, node.Options{CNI: withPlugin(t, "gated", "while test -e "+gate+"/shut; do sleep 0.05; done")})
	bridged(t, n, "gated", []string{`{"type": "gated"}`}, n.Subnet)
	shut := func() (open func()) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(gate, "shut"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return func() { _ = os.Remove(filepath.Join(gate, "shut")) }
	}
	run := func(args ...string) string {
		out, _ := n.Command(args...).CombinedOutput() // the exit code of why says nothing
		return string(out)
	}
	until := func(want string, args ...string) {
		t.Helper()
		n.Until("berth "+strings.Join(args, " ")+" says "+want, func() bool { return strings.Contains(run(args...), want) })
	}
	background := func(call func(ctx context.Context) error) (ended <-chan error) {
		done := make(chan error, 1)
		go func() { done <- call(t.Context()) }()
		return done
	}

	cfg := n.PodConfig()
	name, open := cfg.GetMetadata().GetName(), shut()
	defer open()
	var pod string
	made := background(func(ctx context.Context) error {
		resp, err := n.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg})
		pod = resp.GetPodSandboxId()
		return err
	})
	hangs := "default/" + name + " is being made: the CNI plug-in gated (ADD) has not answered for "
	until(hangs, "why", name)
	until(hangs, "status")
	until(hangs, "pods")
	until("now: It is being made: the CNI plug-in gated (ADD) has not answered for ", "timeline", name)
	until("the CNI plug-in gated (ADD)", "debug", "underway")
	open()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	if out := run("timeline", name); !strings.Contains(out, "now: nothing is under way") {
		t.Errorf("a pod that is made: %s", out)
	}

	ct := n.Run(pod, cfg, node.ContainerConfig("app", "sh", "-c", "trap '' TERM; while :; do sleep 1; done"))
	hook := background(func(ctx context.Context) error {
		_, err := n.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: ct, Cmd: []string{"/bin/sleep", "1000"}})
		return err
	})
	until("Now: it runs the command sleep, for ", "why", name+"/app")
	stopped := background(func(ctx context.Context) error {
		_, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: ct, Timeout: 5})
		return err
	})
	until("/app is being stopped: SIGTERM ", "why", name+"/app")
	until("SIGKILL in ", "ps")
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	<-hook

	bad := node.ContainerConfig("gone", "true")
	bad.Image.Image = "registry.example/gone:v1"
	if _, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: bad, SandboxConfig: cfg}); err == nil {
		t.Error("a container of an image that is not here was made")
	}
	until("/gone (attempt 0) could not be created, ", "why", name+"/gone")

	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pulled := background(func(ctx context.Context) error {
		_, err := n.PullImage(ctx, &runtimeapi.PullImageRequest{
			Image:         &runtimeapi.ImageSpec{Image: silent.Addr().String() + "/app:v1"},
			SandboxConfig: cfg,
		})
		return err
	})
	until("the registry "+silent.Addr().String()+" has not answered for ", "why", name)
	if err := silent.Close(); err != nil { // which resets the connection that waits to be accepted
		t.Fatal(err)
	}
	if err := <-pulled; err == nil {
		t.Error("an image of a registry that is not there was pulled")
	}
	if _, err := n.Control.PruneImages(t.Context(), &berthv1.PruneImagesRequest{OlderThan: durationpb.New(0)}); err != nil { // with what is kept for a retry
		t.Error(err)
	}
}
