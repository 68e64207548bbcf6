// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// pauseImage serves an image that has a pause program and nothing else, not even the directories
// that an OCI runtime mounts at.
func pauseImage(t *testing.T) (ref string) {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(node.Module(t), "build/libexec/pause"))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := testimage.Layer(testimage.File{Name: "hold", Mode: 0o755, Body: program})
	if err != nil {
		t.Fatal(err)
	}
	img, err := testimage.Image(v1.Config{Entrypoint: []string{"/hold"}, Env: []string{"FROM=image"}, User: "1234:1235"}, layer)
	if err != nil {
		t.Fatal(err)
	}
	return testregistry.Start(t).Push("team/pause:1", img)
}

// The pause process comes from the image that is configured, which is pulled when it is missing and
// pinned. Pods keep what they run from when somebody removes the image.
func TestThePauseProcessComesFromTheConfiguredImage(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		ref := pauseImage(t)
		n := node.Start(t, node.Options{External: external, Args: []string{"--set", "runtimes.runc.sandbox_image=" + ref}})
		if err := os.Chmod(n.Dir, 0o711); err != nil { // root of a pod in a user namespace has to reach what is below
			t.Fatal(err)
		}
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		proc := fmt.Sprintf("/proc/%d/", n.SandboxPid(pod))
		holds := func(proc string) func() bool {
			return func() bool {
				exe, err := os.Readlink(proc + "exe") // the OCI runtime's, for a moment after the start
				env, _ := os.ReadFile(proc + "environ")
				return err == nil && exe == "/hold" && strings.Contains(string(env), "FROM=image\x00")
			}
		}
		n.Until("the program of the image runs", holds(proc))
		if b, err := os.ReadFile(proc + "status"); err != nil || !strings.Contains(string(b), "Uid:\t1234\t1234\t1234\t1234\nGid:\t1235\t") {
			t.Errorf("%s %v", b, err)
		}
		if err := os.WriteFile(proc+"root/written", nil, 0o600); err == nil {
			t.Error("the root file system of the pause process is writable")
		}
		image := &runtimeapi.ImageSpec{Image: ref}
		pinned := func() bool {
			list, err := n.ListImages(t.Context(), &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: image}})
			return err == nil && len(list.GetImages()) == 1 && list.GetImages()[0].GetPinned()
		}
		if !pinned() {
			t.Error("the image is not pinned")
		}
		if _, err := n.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: image}); err != nil {
			t.Error(err)
		}
		n.Berth.Kill(syscall.SIGKILL)
		n.StartBerth()
		node.ExpectExit(t, n.Ended(n.Run(pod, cfg, node.ContainerConfig("c", "true"))), 0, "Completed")
		mine := n.PodConfig()
		mine.Linux.SecurityContext.NamespaceOptions.UsernsOptions = mapped()
		other := n.Pod(mine)
		n.Until("the program of the image runs in a user namespace", holds(fmt.Sprintf("/proc/%d/", n.SandboxPid(other))))
		if !pinned() {
			t.Error("the image is not pinned after it was pulled again")
		}
	})
}
