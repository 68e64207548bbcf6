// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

const readWrite = cri138.CgroupMountMode_CGROUP_MOUNT_MODE_READ_WRITE

// advertisesWritable reports whether the node advertises control groups that can be writable.
func advertisesWritable(t *testing.T, n *node.Node) bool {
	t.Helper()
	st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := cri138.Of[cri138.RuntimeFeatures](st.GetFeatures())
	if err != nil {
		t.Fatal(err)
	}
	return f.GetCgroupMountMode()
}

// PROPERTIES 64: a container that asks for it makes groups below its own and moves its processes
// there, as root, as another user and as the root of a user namespace. It owns what the kernel's
// list for delegation has (cgroup-v2, "Delegation"), and cannot change its own limits.
func TestAContainerOwnsItsControlGroup(t *testing.T) {
	n := onUnified(t)
	if err := os.Chmod(n.Dir, 0o711); err != nil { // for the root of a user namespace
		t.Fatal(err)
	}
	if !advertisesWritable(t, n) {
		t.Error("it is not advertised")
	}
	const script = `cd /sys/fs/cgroup
		stat -c '%u:%g %n' . cgroup.procs cgroup.subtree_control cgroup.freeze
		mkdir a a/b && echo $$ >a/b/cgroup.procs && cat /proc/self/cgroup
		(echo 1 >cgroup.freeze) 2>/dev/null || echo kept
		(echo 7 >a/cgroup.max.depth) && cat a/cgroup.max.depth
		sleep 1000`
	for name, tt := range map[string]struct {
		user   int64
		mapped bool
		owner  string
		others string // the owner of what is not delegated
	}{
		"root":   {0, false, "0", "0:0"},
		"user":   {1000, false, "1000", "0:0"},
		"mapped": {0, true, "0", "65534:65534"},
	} {
		cfg := n.PodConfig()
		if tt.mapped {
			cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = mapped()
			n.Until("user namespaces are advertised", func() bool {
				st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{})
				return err == nil && st.GetRuntimeHandlers()[0].GetFeatures().GetUserNamespaces()
			})
		}
		pod := n.Pod(cfg)
		c := seesGroups(name, false, nil, readWrite, script)
		c.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: tt.user}
		if tt.mapped {
			inUserns(c, cfg)
		}
		id := n.Run(pod, cfg, c)
		n.Until("it has told", func() bool {
			return strings.HasSuffix(n.Log(id), "\n7\n") || n.Container(id).GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING
		})
		lines := strings.Split(n.Log(id), "\n")
		for i, file := range []string{".", "cgroup.procs", "cgroup.subtree_control"} {
			if owner, of, _ := strings.Cut(lines[i], ":"); owner != tt.owner || !strings.HasSuffix(of, " "+file) {
				t.Errorf("%s: %s", name, lines[i])
			}
		}
		if lines[3] != tt.others+" cgroup.freeze" || !strings.Contains(n.Log(id), "0::/a/b\n") || !strings.Contains(n.Log(id), "\nkept\n") {
			t.Errorf("%s:\n%s", name, n.Log(id))
		}
		if got, err := execSync(t, n, id, "id -u", 10*time.Second); err != nil || got.GetExitCode() != 0 {
			t.Errorf("%s: a process of exec beside groups below: %v %v", name, got, err)
		}
		n.RemoveAll(t.Context())
	}
	for _, d := range node.Groups(n.Cgroup) {
		node.RemoveGroup(d)
	}
}

// PROPERTIES 64: without nsdelegate a container could leave its group, so that it is not given one;
// the error has the command that mends that, and after it the next container is made.
func TestAControlGroupIsNotWritableWithoutNsdelegate(t *testing.T) {
	n := onUnified(t)
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	create := func(name string) error {
		_, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
			PodSandboxId:  pod,
			SandboxConfig: cfg,
			Config:        seesGroups(name, false, nil, readWrite, "true"),
		})
		return err
	}
	node.NewUnified(t, "memory_recursiveprot") // of the one hierarchy that all mounts are of
	if advertisesWritable(t, n) {
		t.Error("it is advertised")
	}
	n.Until("the log says why", func() bool {
		return strings.Contains(n.Berth.Output(), "containers cannot have writable control groups")
	})
	err := create("refused")
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "mount -o remount,memory_recursiveprot,nsdelegate /sys/fs/cgroup") {
		t.Errorf("%v", err)
	}
	node.NewUnified(t, unifiedOptions)
	if !advertisesWritable(t, n) {
		t.Error("it is not advertised")
	}
	if err := create("made"); err != nil {
		t.Error(err)
	}
	n.RemoveAll(t.Context())
	for _, d := range node.Groups(n.Cgroup) {
		node.RemoveGroup(d)
	}
}

// PROPERTIES 64: a container makes 50 levels of groups and 200 beside each other with a process in
// each, freezes some, moves its processes about at its end, and kills by a group of its own. It
// tries what is not its own: to freeze, limit and kill its whole group, and to leave it. It is
// stopped and removed in time, and no file of the groups beside it and above it changes.
func TestAHostileOwnerOfAControlGroupIsStopped(t *testing.T) {
	n := onUnified(t)
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	near := n.Run(pod, cfg, node.ContainerConfig("near", "sleep", "1000"))
	outside := func() (text string) {
		t.Helper()
		own := unifiedGroup(t, n.Pid(near))
		for _, dir := range []string{own, filepath.Dir(own)} {
			for _, f := range []string{"type", "procs", "freeze", "subtree_control", "max.depth", "max.descendants"} {
				b, err := os.ReadFile(filepath.Join(dir, "cgroup."+f))
				if err != nil {
					t.Fatal(err)
				}
				text += filepath.Join(dir, f) + " " + string(b)
			}
		}
		return text
	}
	before := outside()
	const groups = `cd /sys/fs/cgroup; trap '' TERM INT HUP; mkdir own; echo $$ >own/cgroup.procs
		d=.; i=0; while [ $i -lt 50 ]; do i=$((i+1)); d=$d/l; mkdir $d || exit 1; done
		sleep 1000 & echo $! >$d/cgroup.procs
		i=0; while [ $i -lt 200 ]; do i=$((i+1)); mkdir g$i; sleep 1000 & echo $! >g$i/cgroup.procs; done
		mkdir k; sleep 1000 & p=$!; echo $p >k/cgroup.procs; echo 1 >k/cgroup.kill; wait $p; echo killed $?
		for i in 1 2 3; do echo 1 >g$i/cgroup.freeze; done
		sh -c 'while :; do for i in 4 5 6 7 8; do read p <g$i/cgroup.procs && echo $p >g$((i+10))/cgroup.procs; read p <g$((i+10))/cgroup.procs && echo $p >g$i/cgroup.procs; done; done' 2>/dev/null &
		for f in freeze kill max.depth max.descendants type; do for d in . .. ../..; do (echo 1 >$d/cgroup.$f) && echo wrote $d $f; done; done 2>/dev/null
		(echo 1 >../cgroup.procs) 2>/dev/null && echo left
		echo ready; `
	for name, end := range map[string]string{
		"waits":  "while :; do sleep 1; done",
		"frozen": "echo 1 >own/cgroup.freeze; sleep 1000",
	} {
		id := n.Run(pod, cfg, seesGroups(name, false, nil, readWrite, groups+end))
		n.Until("it is ready", func() bool { return strings.Contains(n.Log(id), "ready\n") })
		if log := n.Log(id); !strings.Contains(log, "killed 137\n") || strings.Contains(log, "wrote") || strings.Contains(log, "left") {
			t.Errorf("%s: %s", name, n.Log(id))
		}
		if _, err := n.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: id}); err != nil {
			t.Errorf("%s: its statistics: %v", name, err)
		}
		n.Within(10*time.Second, "a stop of it", func() node.Span {
			began := time.Now()
			if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 1}); err != nil {
				t.Fatal(err)
			}
			return node.Span{From: began, To: time.Now()}
		})
		node.ExpectExit(t, n.Container(id), 137, "Error")
		n.Within(10*time.Second, "its removal", func() node.Span {
			began := time.Now()
			if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
				t.Fatal(err)
			}
			return node.Span{From: began, To: time.Now()}
		})
		n.Until("its groups are gone", func() bool {
			_, err := os.Stat(filepath.Join(unifiedGroup(t, n.Pid(near)), "..", id))
			return os.IsNotExist(err)
		})
		if st := n.Container(near).GetState(); st != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("%s: the container beside it is %s", name, st)
		}
		if after := outside(); after != before {
			t.Errorf("%s: outside of its group there is\n%s\nand was\n%s", name, after, before)
		}
	}
	n.RemoveAll(t.Context())
	for _, d := range node.Groups(n.Cgroup) {
		node.RemoveGroup(d)
	}
}
