// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// PROPERTIES 22: a container gets the CDI device that it asks for, by CRI's field or by an
// annotation, with all that its specification says; one that nobody described is an error that
// names the device.
func TestAContainerGetsItsCDIDevices(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "library.txt")
	if err := os.WriteFile(file, []byte("the library\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	describe := func(kind, device string) {
		t.Helper()
		text := `{"cdiVersion": "0.6.0", "kind": "` + kind + `", "devices": [{"name": "0", "containerEdits": {
			"env": ["HAS_` + device + `=yes"],
			"mounts": [{"hostPath": "` + file + `", "containerPath": "/` + device + `.txt", "options": ["ro", "nosuid", "nodev", "bind"]}],
			"deviceNodes": [{"path": "/dev/` + device + `", "hostPath": "/dev/zero"}]}}]}`
		if err := os.WriteFile(filepath.Join(dir, "cdi", device+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n := node.Start(t, node.Options{Args: []string{"--set", "cdi.spec_dirs=['" + dir + "/cdi']"}})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	const script = "head -c 3 /dev/DEV | wc -c; cat /DEV.txt; echo $HAS_DEV; (echo x >>/DEV.txt) 2>/dev/null || echo read-only"
	container := func(name, device string) *runtimeapi.ContainerConfig {
		return node.ContainerConfig(name, "sh", "-c", strings.ReplaceAll(script, "DEV", device))
	}
	asked := container("field", "gpu0")
	asked.CDIDevices = []*runtimeapi.CDIDevice{{Name: "vendor.com/gpu=0"}}
	_, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: asked, SandboxConfig: cfg})
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "vendor.com/gpu=0") || !strings.Contains(err.Error(), dir) {
		t.Errorf("a device that does not exist: %v", err)
	}

	if err := os.Mkdir(filepath.Join(dir, "cdi"), 0o700); err != nil { // while berth runs
		t.Fatal(err)
	}
	describe("vendor.com/gpu", "gpu0")
	describe("vendor.com/net", "net0")
	annotated := container("annotation", "net0")
	annotated.Annotations = map[string]string{"cdi.k8s.io/plugin_1": "vendor.com/net=0"}
	for _, c := range []*runtimeapi.ContainerConfig{asked, annotated} {
		id := n.Run(pod, cfg, c)
		node.ExpectExit(t, n.Ended(id), 0, "Completed")
		if got, want := n.Log(id), "3\nthe library\nyes\nread-only\n"; got != want {
			t.Errorf("%s: %q, want %q", c.GetMetadata().GetName(), got, want)
		}
	}
}
