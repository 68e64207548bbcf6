// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// PROPERTIES 78: a runtime class has defaults, a base specification and a snapshotter of its own. An image that came into
// another snapshotter is unpacked into this one when a container is created.
func TestAHandlerHasItsOwnDefaultsBaseSpecificationAndSnapshotter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	base := filepath.Join(dir, "base.json")
	if err := os.WriteFile(base, []byte(`{"process": {"env": ["BASE=yes"], "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 77, "hard": 77}]}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	hook := `{"version": "1.0.0", "hook": {"path": "/bin/sh", "args": ["sh", "-c", "cat >> ` + dir + `/hooked"]},
		"when": {"annotations": {"^hooked$": "yes"}}, "stages": ["createRuntime"]}`
	if err := errors.Join(os.Mkdir(dir+"/hooks", 0o700), os.WriteFile(dir+"/hooks/one.json", []byte(hook), 0o600)); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(config, []byte(`
[runtimes.plain]
type = 'io.containerd.runc.v2'
host_process = true
snapshotter = 'native'
base_spec = '`+base+`'
[runtimes.given]
type = 'io.containerd.runc.v2'
host_process = true
no_new_keyring = true
[runtimes.given.defaults]
seccomp = 'RuntimeDefault'
capabilities = ['CHOWN']
env = ['GIVEN=yes']
ulimits = ['nofile=78:79']
pids_limit = 55
readonly_rootfs = true
mounts = ['`+base+`:/base.json:ro']
sysctls = ['net.core.somaxconn=77']
allowed_devices = ['/dev/zero']
device_ownership = true
hooks_dirs = ['`+dir+`/hooks']
`), 0o600); err != nil {
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
	given := n.PodConfig()
	given.Annotations = map[string]string{"devices.crio.io": "/dev/zero", "hooked": "yes"}
	if pod, err = n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: given, RuntimeHandler: "given"}); err != nil {
		t.Fatal(err)
	}
	c = node.ContainerConfig("c", "sh", "-c", "echo $GIVEN; ulimit -n; grep -E '^(CapBnd|Seccomp):' /proc/self/status; (echo x >/x) 2>/dev/null || echo read-only; "+
		"head -c 2 /base.json; echo; cat /proc/sys/net/core/somaxconn; stat -c %u:%g /dev/zero; head -c 3 /dev/zero | wc -c; cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null")
	c.Linux.SecurityContext.RunAsUser, c.Linux.SecurityContext.RunAsGroup = &runtimeapi.Int64Value{Value: 107}, &runtimeapi.Int64Value{Value: 108}
	id = n.Run(pod.GetPodSandboxId(), given, c)
	n.Ended(id)
	if got, want := n.Log(id), "yes\n78\nCapBnd:\t0000000000000001\nSeccomp:\t2\nread-only\n{\"\n77\n107:108\n3\n55\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if b, err := os.ReadFile(dir + "/hooked"); err != nil || !strings.Contains(string(b), id) {
		t.Errorf("the hook did not get the state of %s: %q, %v", id, b, err)
	}
	usual := n.PodConfig()
	id = n.Run(n.Pod(usual), usual, node.ContainerConfig("c", "sh", "-c", "echo $BASE; grep -c ' / overlay' /proc/mounts"))
	if st := n.Ended(id); st.GetExitCode() != 0 || strings.TrimSpace(n.Log(id)) != "1" {
		t.Errorf("%v %q", st, n.Log(id))
	}
}
