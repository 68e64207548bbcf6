// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// A runtime class has a base specification and a snapshotter of its own. An image that came into
// another snapshotter is unpacked into this one when a container is created.
func TestAHandlerHasItsOwnBaseSpecificationAndSnapshotter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	base := filepath.Join(dir, "base.json")
	if err := os.WriteFile(base, []byte(`{"process": {"env": ["BASE=yes"], "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 77, "hard": 77}]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(config, []byte("[runtimes.plain]\ntype = 'io.containerd.runc.v2'\nhost_process = true\nsnapshotter = 'native'\nbase_spec = '"+base+"'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := node.Start(t, node.Options{Args: []string{"--config", config}})
	cfg := n.PodConfig()
	pod, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: "plain"})
	if err != nil {
		t.Fatal(err)
	}
	volume := importVolume(t, n)
	c := mountsImage("c", volume, "data", "echo $BASE; ulimit -n; cat /volume/hostname; grep -c ' / overlay' /proc/mounts")
	id := n.Run(pod.GetPodSandboxId(), cfg, c)
	node.ExpectExit(t, n.Ended(id), 1, "Error") // grep counted none
	if got := n.Log(id); got != "yes\n77\nof the image\n0\n" {
		t.Errorf("%q", got)
	}
	usual := n.PodConfig()
	id = n.Run(n.Pod(usual), usual, node.ContainerConfig("c", "sh", "-c", "echo $BASE; grep -c ' / overlay' /proc/mounts"))
	if st := n.Ended(id); st.GetExitCode() != 0 || strings.TrimSpace(n.Log(id)) != "1" {
		t.Errorf("%v %q", st, n.Log(id))
	}
}
