// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
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

const hostID, idCount = 100000, 65536

func mapped() *runtimeapi.UserNamespace {
	ids := func() []*runtimeapi.IDMapping {
		return []*runtimeapi.IDMapping{{HostId: hostID, Length: idCount}}
	}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids(), Gids: ids()}
}

// keepOutput are the arguments of a berth that reads a container's own pipes. Those of the shim belong
// to the host's root, so that /dev/stdout cannot be opened in a user namespace, and the output of a
// container whose restore outlives berth is lost in them.
var keepOutput = []string{"--set", "tricks.keep_output=true"}

func inUserns(c *runtimeapi.ContainerConfig, pod *runtimeapi.PodSandboxConfig) *runtimeapi.ContainerConfig {
	c.Linux.SecurityContext.NamespaceOptions = pod.GetLinux().GetSecurityContext().GetNamespaceOptions()
	return c
}

// PROPERTIES 26: a pod in a user namespace of its own: root is a plain user of the host; the files
// of the image, of the pod and of volumes belong to root; the network is the pod's own to change.
func TestAPodHasAUserNamespace(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		n := node.Start(t, node.Options{External: external, Args: keepOutput})
		// Root of the pod has to reach the bundles below it.
		if err := os.Chmod(n.Dir, 0o711); err != nil {
			t.Fatal(err)
		}
		image := importVolume(t, n)
		volume := filepath.Join(n.Dir, "volume")
		if err := os.Mkdir(volume, 0o700); err != nil {
			t.Fatal(err)
		}
		cfg := n.PodConfig()
		cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = mapped()
		pod := n.Pod(cfg)
		n.Until("it is advertised", func() bool {
			st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{})
			return err == nil && st.GetRuntimeHandlers()[0].GetFeatures().GetUserNamespaces()
		})
		c := inUserns(mountsImage("c", image, "data", `
			tr -s ' ' </proc/self/uid_map
			tr -s ' ' </proc/self/gid_map
			stat -c '%u:%g %n' / /bin/busybox /etc/hosts /etc/resolv.conf /dev/shm /volume/hostname /one/hostname /own
			echo x >/new && echo x >/etc/hosts && echo x >/dev/shm/x && echo x >/own/x && echo written
			cat /proc/sys/net/ipv4/ping_group_range
			ip link set lo mtu 1400 && echo network
			echo direct >/dev/stdout || exit 1
			ls /sys/class/net | tr '\n' ' '; echo
			trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done`), cfg)
		c.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"NET_ADMIN"}}
		c.Mounts = append(c.Mounts, &runtimeapi.Mount{
			ContainerPath: "/one",
			Readonly:      true,
			Image:         &runtimeapi.ImageSpec{Image: importOneLayer(t, n)},
			ImageSubPath:  "data",
		}, &runtimeapi.Mount{
			HostPath:      volume,
			ContainerPath: "/own",
			UidMappings:   mapped().GetUids(),
			GidMappings:   mapped().GetGids(),
		})
		id := n.Run(pod, cfg, c)
		n.Until("ready", func() bool { return strings.HasSuffix(n.Log(id), "ready\n") })
		want := fmt.Sprintf(" 0 %d %d\n 0 %d %d\n", hostID, idCount, hostID, idCount)
		for _, path := range []string{"/", "/bin/busybox", "/etc/hosts", "/etc/resolv.conf", "/dev/shm", "/volume/hostname", "/one/hostname", "/own"} {
			want += "0:0 " + path + "\n"
		}
		want += fmt.Sprintf("written\n0\t%d\nnetwork\ndirect\neth0 lo \nready\n", idCount-1)
		if got := n.Log(id); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		var st syscall.Stat_t
		if err := syscall.Stat(volume+"/x", &st); err != nil || st.Uid != 0 {
			t.Errorf("what the pod's root wrote belongs to %d on the host: %v", st.Uid, err)
		}
		if err := syscall.Stat(fmt.Sprintf("/proc/%d", n.Pid(id)), &st); err != nil || st.Uid != hostID {
			t.Errorf("the process runs as %d on the host: %v", st.Uid, err)
		}
		// CVE-2025-47291: the limits of the pod hold for whoever is in a user namespace, too.
		group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", n.Pid(id)))
		if err != nil || !strings.Contains(string(group), ":"+n.Cgroup+"/"+id+"\n") {
			t.Errorf("its cgroups: %s %v", group, err)
		}
		exec, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "id -u; cat /proc/self/uid_map | tr -s ' '"}})
		if err != nil || string(exec.GetStdout()) != fmt.Sprintf("0\n 0 %d %d\n", hostID, idCount) {
			t.Errorf("%v %v", exec, err)
		}
		n.Berth.Kill(syscall.SIGKILL)
		n.StartBerth()
		if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 30}); err != nil {
			t.Fatal(err)
		}
		node.ExpectExit(t, n.Ended(id), 7, "Error")
	})
}

// PROPERTIES 26: on the host's network a pod sees the host's /sys, read-only: it could not mount
// one of its own.
func TestAPodHasAUserNamespaceOnTheHostsNetwork(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	if err := os.Chmod(n.Dir, 0o711); err != nil {
		t.Fatal(err)
	}
	cfg := n.PodConfig()
	cfg.Hostname = ""
	cfg.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
	cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = mapped()
	pod := n.Pod(cfg)
	n.Until("it is advertised", func() bool {
		st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{})
		return err == nil && st.GetFeatures().GetUserNamespacesHostNetwork()
	})
	c := inUserns(node.ContainerConfig("c", "sh", "-c",
		"ls /sys/class/net | grep -c lo; grep -c ' /sys sysfs ro' /proc/mounts; tr -s ' ' </proc/self/uid_map"), cfg)
	id := n.Run(pod, cfg, c)
	node.ExpectExit(t, n.Ended(id), 0, "Completed")
	if got, want := n.Log(id), fmt.Sprintf("1\n1\n 0 %d %d\n", hostID, idCount); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// PROPERTIES 22 and 26: a user namespace that would not be as it was asked for is refused by name.
func TestAUserNamespaceThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{Args: []string{"--set", "runtimes.runc.snapshotter=native"}})
	for name, change := range map[string]func(o *runtimeapi.NamespaceOption){
		"exactly one": func(o *runtimeapi.NamespaceOption) {
			o.UsernsOptions.Uids = append(o.UsernsOptions.Uids, &runtimeapi.IDMapping{Length: 1})
		},
		"begin at 0":        func(o *runtimeapi.NamespaceOption) { o.UsernsOptions.Gids[0].ContainerId = 1 },
		"is empty":          func(o *runtimeapi.NamespaceOption) { o.UsernsOptions.Gids[0].Length = 0 },
		"more than":         func(o *runtimeapi.NamespaceOption) { o.UsernsOptions.Uids[0].HostId = 1<<32 - 1 },
		"not POD or NODE":   func(o *runtimeapi.NamespaceOption) { o.UsernsOptions.Mode = runtimeapi.NamespaceMode_CONTAINER },
		"not the host's":    func(o *runtimeapi.NamespaceOption) { o.Pid = runtimeapi.NamespaceMode_NODE },
		"snapshotter nativ": func(*runtimeapi.NamespaceOption) {},
	} {
		cfg := n.PodConfig()
		cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = mapped()
		change(cfg.GetLinux().GetSecurityContext().GetNamespaceOptions())
		_, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
		code := codes.InvalidArgument
		if name == "snapshotter nativ" {
			code = codes.Unimplemented
		}
		if status.Code(err) != code || !strings.Contains(err.Error(), "userns_options") || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
