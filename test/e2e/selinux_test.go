// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// SELinux keeps pods apart by a category that each has of its own, and that outlives berth. What a
// request asks for is given, or refused where the host's policy does not have it.
//
// On a host without SELinux, a container that asks for a label runs without it, and its timeline
// says so.
func TestSELinuxKeepsPodsApart(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	if !seLinuxEnforces() {
		if os.Getenv("BERTH_GUEST") == "selinux" {
			t.Fatal("the guest has no SELinux that enforces: it proves nothing")
		}
		cfg := n.PodConfig()
		c := node.ContainerConfig("c", "sleep", "1000")
		c.Linux.SecurityContext.SelinuxOptions = &runtimeapi.SELinuxOption{Type: "container_t"}
		id := n.Run(n.Pod(cfg), cfg, c)
		if timeline, err := n.Timeline(t.Context(), id); err != nil || !strings.Contains(timeline, "this host does not have SELinux") {
			t.Errorf("its timeline says: %s %v", timeline, err)
		}
		return
	}
	volume := t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "file"), []byte("secret\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	mount := func(relabel bool) []*runtimeapi.Mount {
		return []*runtimeapi.Mount{{HostPath: volume, ContainerPath: "/volume", SelinuxRelabel: relabel}}
	}
	// The container tries what it may do, and says with which label: its own files, those of the pod,
	// an image, and a volume.
	const try = `exec 2>&1; cat /proc/self/attr/current; echo
for f in /own /dev/shm/$$ /etc/hosts; do echo "# mine" >>$f && cat $f >/dev/null || echo "no $f"; done
[ ! -e /image ] || /image/bin/true || echo no image
cat /volume/file; echo end; exec sleep 1000`
	says := func(pod string, cfg *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) (id, label, rest string) {
		t.Helper()
		id = n.Run(pod, cfg, c)
		n.Until("it has tried", func() bool { return strings.HasSuffix(n.Log(id), "end\n") })
		label, rest, _ = strings.Cut(strings.ReplaceAll(n.Log(id), "\x00", ""), "\n")
		return id, label, rest
	}
	seen := map[string]bool{} // labels
	for _, tt := range []struct {
		name, label, volume string
		change              func(p *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig)
	}{
		{"host's files", "system_u:system_r:container_t:s0:c", "Permission denied", func(_ *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
			c.Mounts = mount(false)
		}},
		{"relabelled", "system_u:system_r:container_t:s0:c", "secret", func(_ *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
			c.Mounts = mount(true)
		}},
		{"files of another pod", "system_u:system_r:container_t:s0:c", "Permission denied", func(_ *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
			c.Mounts = mount(false)
		}},
		{"a level of the pod", "system_u:system_r:container_t:s0:c1,c2", "secret", func(p *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
			p.Linux.SecurityContext.SelinuxOptions = &runtimeapi.SELinuxOption{Level: "s0:c1,c2"}
			c.Mounts = mount(true)
		}},
		{"a pause process, and an image", "system_u:system_r:container_t:s0:c", "secret", func(p *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
			p.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
			c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
			c.Mounts = append(mount(true), &runtimeapi.Mount{Image: &runtimeapi.ImageSpec{Image: node.Busybox}, ContainerPath: "/image", Readonly: true})
		}},
		{"privileged", "system_u:system_r:kernel_t:s0-s0:c0.c1023", "secret", func(p *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
			p.Linux.SecurityContext.Privileged, c.Linux.SecurityContext.Privileged = true, true
			c.Mounts = mount(false)
		}},
	} {
		cfg, c := n.PodConfig(), node.ContainerConfig("c", "sh", "-c", try)
		tt.change(cfg, c)
		pod := n.Pod(cfg)
		id, label, rest := says(pod, cfg, c)
		if !strings.HasPrefix(label, tt.label) || seen[label] {
			t.Errorf("%s: it has the label %q, want another one that begins with %s", tt.name, label, tt.label)
		}
		seen[label] = true
		if strings.Contains(rest, "no ") || !strings.Contains(rest, tt.volume) {
			t.Errorf("%s: it says %q", tt.name, rest)
		}
		exec, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"cat", "/proc/self/attr/current"}})
		if got := strings.TrimRight(string(exec.GetStdout()), "\x00\n"); err != nil || got != label {
			t.Errorf("%s: an exec process has the label %q %v, want %s", tt.name, got, err, label)
		}
		c2 := node.ContainerConfig("c2", "sh", "-c", try)
		c2.Linux.SecurityContext.NamespaceOptions = c.Linux.SecurityContext.NamespaceOptions
		_, second, rest := says(pod, cfg, c2)
		if tt.name == "privileged" { // and this one is not
			if !strings.HasPrefix(second, "system_u:system_r:container_t:s0:c") || seen[second] {
				t.Errorf("%s: another container of the pod has the label %q", tt.name, second)
			}
		} else if second != label {
			t.Errorf("%s: another container of the pod has the label %q, want %s", tt.name, second, label)
		}
		if strings.Contains(rest, "no /") {
			t.Errorf("%s: another container says %q", tt.name, rest)
		}
	}

	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	c := node.ContainerConfig("c", "sleep", "1000")
	c.Linux.SecurityContext.SelinuxOptions = &runtimeapi.SELinuxOption{Type: "unheard_of_t"}
	_, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: c, SandboxConfig: cfg})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "unheard_of_t") {
		t.Errorf("a type that the policy does not have: %v", err)
	}

	n.Berth.Kill(syscall.SIGKILL)
	n.StartBerth()
	cfg = n.PodConfig()
	if _, label, _ := says(n.Pod(cfg), cfg, node.ContainerConfig("c", "sh", "-c", try)); seen[label] || !strings.Contains(label, "container_t") {
		t.Errorf("after berth was killed, a pod has the label %s", label)
	}
}

func seLinuxEnforces() bool {
	b, err := os.ReadFile("/sys/fs/selinux/enforce")
	return err == nil && string(b) == "1"
}
