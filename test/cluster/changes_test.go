// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/cgroup"
	"berth/test/node"
)

// pod is a pod of the namespace default.
func (c *cluster) pod(name string) (*corev1.Pod, error) {
	p := &corev1.Pod{}
	return p, c.get("/api/v1/namespaces/default/pods/"+name, p)
}

// ready waits until a pod of the namespace default is Ready.
func (c *cluster) ready(name string) *corev1.Pod {
	c.t.Helper()
	var p *corev1.Pod
	c.until("the pod "+name+" is Ready", func() error {
		var err error
		if p, err = c.pod(name); err == nil && !podReady(p) {
			err = fmt.Errorf("%+v", p.Status)
		}
		return err
	})
	return p
}

// statusOf is the status of a container, of whichever kind; nil if there is none yet.
func statusOf(p *corev1.Pod, name string) *corev1.ContainerStatus {
	all := slices.Concat(p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses)
	if i := slices.IndexFunc(all, func(s corev1.ContainerStatus) bool { return s.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// same fails the test if a container is not the one that it was.
func (c *cluster) same(before *corev1.Pod, container string) {
	c.t.Helper()
	after, err := c.pod(before.Name)
	if err != nil {
		c.t.Fatal(err)
	}
	was, is := statusOf(before, container), statusOf(after, container)
	if is.ContainerID != was.ContainerID || is.RestartCount != 0 || is.State.Running == nil {
		c.t.Errorf("the container %s of %s was %+v, and is %+v", container, before.Name, was, is)
	}
}

// PROPERTIES 5: kubectl debug puts a container into a pod that runs. With a target it sees the processes
// and the files of that one, and without one it sees its own. Its code and its output arrive, and the pod
// runs on.
func (c *cluster) debugged() {
	last := c.members[len(c.members)-1]
	c.applyText(last.text("apps/debugged"))
	before := c.ready("debugged")
	debug := func(name string, args ...string) []string {
		return append([]string{"debug", "debugged", "--image=" + node.Busybox, "--image-pull-policy=IfNotPresent", "--container=" + name}, args...)
	}
	for _, look := range []struct {
		name, target, script string
		code                 int32
		sees                 bool
	}{
		{"inside", "--target=app", "ps; cat /proc/1/root/tmp/mark; exit 7", 7, true},
		{"beside", "--target=", "ps; exit 0", 0, false},
	} {
		c.must(debug(look.name, look.target, "--", "sh", "-c", look.script)...)
		var end *corev1.ContainerStateTerminated
		c.until("the container "+look.name+" has ended", func() error {
			p, err := c.pod("debugged")
			if err != nil {
				return err
			}
			s := statusOf(p, look.name)
			if s == nil || s.State.Terminated == nil {
				return fmt.Errorf("%+v", p.Status.EphemeralContainerStatuses)
			}
			end = s.State.Terminated
			return nil
		})
		out := c.must("logs", "debugged", "-c", look.name)
		if end.ExitCode != look.code || strings.Contains(out, "sleep 31415") != look.sees || strings.Contains(out, "of the app") != look.sees {
			c.t.Errorf("the container %s ended with %+v, and saw %q", look.name, end, out)
		}
	}
	// One with a standard input, to which kubectl attaches.
	out, err := c.kubectl("kill the app\n", debug("attached", "--target=app", "-i", "--", "sh", "-c", "read line; ps; echo asked to $line")...)
	if err != nil || !strings.Contains(out, "sleep 31415") || !strings.Contains(out, "asked to kill the app\n") {
		c.t.Errorf("debug -i: %q, %v", out, err)
	}
	c.same(before, "app")
	c.debuggedElsewhere(last)
	c.must("delete", "pod", "debugged")
}

// debuggedElsewhere puts a debugger into a copy of the pod whose containers see each other's processes,
// and onto a node, whose processes and files it sees.
func (c *cluster) debuggedElsewhere(on *member) {
	for _, args := range [][]string{
		{"debugged", "--copy-to=copied", "--share-processes", "--same-node", "--container=looker", "--",
			"sh", "-c", "until ps | grep 'sleep 31415' | grep -v grep; do sleep 0.1; done"},
		{"node/" + on.name, "--", "sh", "-c", "ps | grep '[-]-hostname-override " + on.name + "' && chroot /host cat " + on.dir + "/resolv.conf"},
	} {
		out := c.must(append([]string{"debug", "--image=" + node.Busybox, "--image-pull-policy=IfNotPresent"}, args...)...)
		name, container := "copied", "looker"
		if found := regexp.MustCompile(`node-debugger-\S+`).FindString(out); found != "" {
			name, container = found, "debugger"
		}
		c.until("the debugger in "+name+" has ended well", func() error {
			p, err := c.pod(name)
			if err != nil {
				return err
			}
			s := statusOf(p, container)
			if s == nil || s.LastTerminationState.Terminated == nil && s.State.Terminated == nil {
				return fmt.Errorf("%+v", p.Status)
			}
			if end := cmp.Or(s.LastTerminationState.Terminated, s.State.Terminated); end.ExitCode != 0 {
				c.t.Fatalf("the debugger in %s ended with %+v and %q", name, end, c.must("logs", name, "-c", container))
			}
			return nil
		})
		c.must("delete", "pod", name, "--grace-period=1")
	}
}

// PROPERTIES 24: a container gets more and less of a processor and of memory while it runs, and what it
// got stays with it when berth is killed. One that asks for that is started anew.
func (c *cluster) resized() {
	last := c.members[len(c.members)-1]
	c.applyText(last.text("apps/resized"))
	before := c.ready("resized")
	c.resize("lasting", 300, 96)
	c.resize("lasting", 150, 80)
	if !last.foreign {
		last.Berth.Kill(syscall.SIGKILL)
		last.StartBerth()
		c.limited("lasting", 150, 80)
	}
	c.same(before, "lasting")
	c.same(before, "restarting")
	c.resize("restarting", 200, 96)
	c.until("the other container was started anew once", func() error {
		p, err := c.pod("resized")
		if err == nil && (statusOf(p, "restarting").RestartCount != 1 || !podReady(p)) {
			err = fmt.Errorf("%+v", p.Status)
		}
		return err
	})
	c.same(before, "lasting")
	c.must("delete", "pod", "resized")
}

// resize changes what a container of the pod resized may have, in thousandths of a processor and
// mebibytes, and waits until it has that.
func (c *cluster) resize(container string, cpu, memory int) {
	c.t.Helper()
	c.must("patch", "pod", "resized", "--subresource=resize", "--patch", fmt.Sprintf(
		`{"spec": {"containers": [{"name": %q, "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "%dm", "memory": "%dMi"}}}]}}`, container, cpu, memory))
	c.limited(container, cpu, memory)
}

// limited waits until the API server, the runtime, and the cgroup say that a container of the pod resized
// may have that, and that no resize is under way.
func (c *cluster) limited(container string, cpu, memory int) {
	c.t.Helper()
	at := func(v2, v1 string) string {
		if cgroup.V2() {
			v1 = v2
		}
		return "/sys/fs/cgroup/" + v1
	}
	c.until(fmt.Sprintf("%s has %dm and %dMi", container, cpu, memory), func() error {
		p, err := c.pod("resized")
		if err != nil {
			return err
		}
		for _, condition := range p.Status.Conditions {
			if t := condition.Type; t == corev1.PodResizePending || t == corev1.PodResizeInProgress {
				return fmt.Errorf("%+v", condition)
			}
		}
		s := statusOf(p, container)
		if s.State.Running == nil || s.Resources == nil || s.Resources.Limits.Cpu().MilliValue() != int64(cpu) || s.Resources.Limits.Memory().Value() != int64(memory)<<20 {
			return fmt.Errorf("the status is %+v", s)
		}
		_, id, _ := strings.Cut(s.ContainerID, "://")
		st, err := c.members[len(c.members)-1].ContainerStatus(c.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			return err
		}
		if l := st.GetStatus().GetResources().GetLinux(); l.GetMemoryLimitInBytes() != int64(memory)<<20 || l.GetCpuQuota() != int64(cpu)*100 {
			return fmt.Errorf("the runtime says %v", l)
		}
		out, err := c.kubectl("", "exec", "resized", "-c", container, "--", "cat", at("memory.max", "memory/memory.limit_in_bytes"), at("cpu.max", "cpu/cpu.cfs_quota_us"))
		if want := fmt.Sprintf("%d\n%d", memory<<20, cpu*100); err == nil && !strings.HasPrefix(out, want) {
			err = fmt.Errorf("the cgroup has %q, not %q", out, want)
		}
		return err
	})
}

// PROPERTIES 4, 5 and 23: berth is replaced by another version on one node after the other, and that by
// the first one again. The user notices nothing, the Job that runs meanwhile sees each code as it was, and
// the log of a pod that writes without pause has each line once.
// BERTH_BEFORE is the path of the other berth; without it, it is the same one with another number.
func (c *cluster) upgraded() {
	c.rest()
	usual := c.version(c.members[0])
	other := os.Getenv("BERTH_BEFORE")
	if other == "" {
		other = node.Other(c.t)
	}
	c.must("run", "counter", "--image="+node.Busybox, "--image-pull-policy=IfNotPresent", "--restart=Never", "--command", "--",
		"sh", "-c", "i=0; while :; do i=$((i + 1)); echo $i; sleep 0.02; done")
	c.ready("counter")
	for _, next := range []struct{ what, program string }{
		{"berth is replaced by another version node by node", other},
		{"it is replaced by the first one again", ""},
	} {
		u := c.watch(next.what, c.members...)
		check := c.ends(24)
		for _, m := range c.members {
			m.Program = next.program
			m.Berth.Kill(syscall.SIGTERM)
			m.StartBerth()
			version := c.version(m)
			if (version == usual) != (next.program == "") {
				c.t.Errorf("%s runs berth %s, and ran %s", m.name, version, usual)
			}
			c.until("the cluster knows that "+m.name+" runs berth "+version, func() error { return c.runs(m, "berth://"+version) })
			u.enough(100)
			c.until("the nodes are Ready", c.nodesReady)
			c.whole("default", "web")
		}
		c.ended("ends")
		c.rest()
		u.done().streamless().quiet(c.t)
		check()
		for i, line := range strings.Fields(c.must("logs", "counter")) {
			if line != strconv.Itoa(i+1) {
				c.t.Fatalf("line %d of the log is %q", i+1, line)
			}
		}
	}
	c.must("delete", "pod", "counter", "--grace-period=1")
}

// version is what the runtime of a node says of itself.
func (c *cluster) version(m *member) string {
	c.t.Helper()
	resp, err := m.Version(c.t.Context(), &runtimeapi.VersionRequest{})
	m.check(err)
	return resp.GetRuntimeVersion()
}

// runs says whether the cluster knows a node's runtime by what it begins with.
func (c *cluster) runs(m *member, prefix string) error {
	var n corev1.Node
	err := c.get("/api/v1/nodes/"+m.name, &n)
	if v := n.Status.NodeInfo.ContainerRuntimeVersion; err == nil && !strings.HasPrefix(v, prefix) {
		err = fmt.Errorf("it is said to run %s", v)
	}
	return err
}
