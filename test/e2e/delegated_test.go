// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/cri138"
	"berth/test/node"
)

// seesGroups returns a container that asks for a cgroup namespace, if it names a mode, and a way to
// mount control groups.
func seesGroups(name string, privileged bool, namespace *runtimeapi.NamespaceMode, mount cri138.CgroupMountMode, script string) *runtimeapi.ContainerConfig {
	c := node.ContainerConfig(name, "sh", "-c", script)
	sec := c.Linux.SecurityContext
	sec.Privileged = privileged
	if privileged {
		sec.Seccomp = nil
	}
	if namespace != nil {
		cri138.Set(sec.NamespaceOptions, &cri138.NamespaceOption{CgroupnsOptions: &cri138.CgroupNamespace{Mode: *namespace}})
	}
	cri138.Set(sec, &cri138.LinuxContainerSecurityContext{CgroupMountMode: mount})
	return c
}

// PROPERTIES 64: a container has the cgroup namespace that it asks for, and so has each process of
// exec, whether berth-exec or the OCI runtime makes it. The default is as before.
func TestAContainerSeesItsControlGroupsAsItAsks(t *testing.T) {
	host, err := os.Readlink("/proc/self/ns/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	own, shared := runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_NODE
	for _, version := range []string{"v1", "v2"} {
		t.Run(version, func(t *testing.T) {
			var n *node.Node
			if version == "v1" {
				n = node.Start(t, node.Options{})
			} else {
				n = onUnified(t)
			}
			st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if f, err := cri138.Of[cri138.RuntimeHandlerFeatures](st.GetRuntimeHandlers()[0].GetFeatures()); err != nil || !f.GetCgroupNamespaces() {
				t.Errorf("advertised %v, %v", f, err)
			}
			for _, privileged := range []bool{false, true} {
				cfg := n.PodConfig()
				cfg.Linux.SecurityContext.Privileged = privileged
				pod := n.Pod(cfg)
				for name, tt := range map[string]struct {
					mode *runtimeapi.NamespaceMode
					own  bool
				}{
					"unset":     {nil, version == "v2" && !privileged},
					"container": {&own, true},
					"node":      {&shared, false},
				} {
					c := seesGroups(name, privileged, tt.mode, 0, "readlink /proc/self/ns/cgroup; cat /proc/self/cgroup; ls /sys/fs/cgroup | wc -l; sleep 1000")
					id := n.Run(pod, cfg, c)
					n.Until("it has told", func() bool { return strings.Count(n.Log(id), "\n") > 2 })
					log := n.Log(id)
					if got := !strings.HasPrefix(log, host+"\n"); got != tt.own {
						t.Errorf("privileged %v, %s: it has a namespace of its own: %v\n%s", privileged, name, got, log)
					}
					if hides := !strings.Contains(log, id); hides != tt.own {
						t.Errorf("privileged %v, %s: the paths of its groups are hidden: %v\n%s", privileged, name, hides, log)
					}
					if strings.HasSuffix(log, "\n0\n") {
						t.Errorf("privileged %v, %s: it sees no control group\n%s", privileged, name, log)
					}
					first, _, _ := strings.Cut(log, "\n")
					for range 2 {
						got, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"readlink", "/proc/self/ns/cgroup"}})
						if err != nil || string(got.GetStdout()) != first+"\n" {
							t.Errorf("privileged %v, %s: a process of exec is in %q (%v), the container in %s", privileged, name, got.GetStdout(), err, first)
						}
					}
				}
				n.RemoveAll(t.Context())
			}
			for _, d := range node.Groups(n.Cgroup) {
				node.RemoveGroup(d)
			}
		})
	}
}
