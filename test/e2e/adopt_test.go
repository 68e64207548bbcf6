// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/client"
	"berth/test/node"
)

// adopted is a node whose pods containerd's CRI plug-in has made.
type adopted struct {
	*node.Node
	t      *testing.T
	shared string // a directory of the host that containers mount at /shared

	pods map[string]string                       // IDs by name
	ids  map[string]string                       // of containers, by name
	cfgs map[string]*runtimeapi.PodSandboxConfig // by name of the pod
	was  map[string]*runtimeapi.ContainerStatus  // before the change of the runtime, by name
	pids map[string]int                          // of containers and sandboxes that run
}

func (a *adopted) pod(name string, change func(*runtimeapi.PodSandboxConfig)) {
	a.t.Helper()
	cfg := a.PodConfig()
	cfg.Metadata.Attempt = 3
	if change != nil {
		change(cfg)
	}
	a.cfgs[name], a.pods[name] = cfg, a.Pod(cfg)
}

// container makes a container of a pod, and starts it if start is set.
func (a *adopted) container(pod, name, script string, start bool, change func(*runtimeapi.ContainerConfig)) {
	a.t.Helper()
	c := node.ContainerConfig(name, "sh", "-c", script)
	c.Metadata.Attempt = 5
	c.Mounts = []*runtimeapi.Mount{{HostPath: a.shared, ContainerPath: "/shared"}}
	c.Linux.SecurityContext.NamespaceOptions = a.cfgs[pod].GetLinux().GetSecurityContext().GetNamespaceOptions()
	if change != nil {
		change(c)
	}
	a.ids[name] = a.Create(a.pods[pod], a.cfgs[pod], c)
	if !start {
		return
	}
	if _, err := a.StartContainer(a.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: a.ids[name]}); err != nil {
		a.t.Fatal(err)
	}
}

const (
	// writes writes about a megabyte a second, in lines of a thousand bytes with a number each.
	writes = `i=0; while :; do n=0; while [ $n -lt 100 ]; do printf '%0999d\n' $i; i=$((i+1)); n=$((n+1)); done; sleep 0.1; done`
	sleeps = `trap 'exit 7' TERM; while :; do sleep 0.1; done`
	echoes = `while read -r line; do echo "got $line"; done; echo over; sleep 1000`
)

// newAdopted makes a node whose pods the plug-in makes.
func newAdopted(t *testing.T) *adopted {
	n := node.Start(t, node.Options{External: true})
	if err := os.Chmod(n.Dir, 0o711); err != nil {
		t.Fatal(err)
	}
	a := &adopted{
		Node:   n,
		t:      t,
		shared: n.Dir + "/shared",
		pods:   map[string]string{},
		ids:    map[string]string{},
		cfgs:   map[string]*runtimeapi.PodSandboxConfig{},
	}
	if err := os.Mkdir(a.shared, 0o777); err != nil {
		t.Fatal(err)
	}
	importVolume(t, n)
	n.StartPlugin()
	return a
}

// startAdopted makes pods of many kinds under the plug-in.
func startAdopted(t *testing.T) *adopted {
	a := newAdopted(t)
	a.pod("plain", nil)
	a.container("plain", "logger", writes, true, nil)
	a.container("plain", "sleeper", sleeps, true, func(c *runtimeapi.ContainerConfig) {
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}
	})
	a.container("plain", "server", "mkdir /tmp/w && echo -n served >/tmp/w/f && exec httpd -f -p 127.0.0.1:8080 -h /tmp/w", true, nil)
	a.pod("ending", nil)
	a.container("ending", "ender", `until [ -e /shared/end ]; do sleep 0.05; done; echo last words; exit 42`, true, nil)
	a.container("ending", "hungry", `until [ -e /shared/end ]; do sleep 0.05; done; exec tail /dev/zero`, true, func(c *runtimeapi.ContainerConfig) {
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 16 << 20}
	})
	a.container("ending", "survivor", `tail /dev/zero; echo survived; until [ -e /shared/end ]; do sleep 0.05; done; exit 137`, true, func(c *runtimeapi.ContainerConfig) {
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 16 << 20}
	})
	a.container("ending", "ended", `echo done; exit 9`, true, nil)
	a.pod("hostnet", func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
		c.Hostname = ""
	})
	a.container("hostnet", "onhost", sleeps, true, nil)
	a.pod("hostpid", func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
		c.Linux.SecurityContext.NamespaceOptions.Ipc = runtimeapi.NamespaceMode_NODE
	})
	a.container("hostpid", "inhost", sleeps, true, nil)
	a.pod("shared", func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	})
	a.container("shared", "init", "exit 0", true, nil)
	a.container("shared", "sidecar", sleeps, true, nil)
	a.container("shared", "terminal", echoes, true, func(c *runtimeapi.ContainerConfig) { c.Tty, c.Stdin = true, true })
	a.container("shared", "input", echoes, true, func(c *runtimeapi.ContainerConfig) { c.Stdin = true })
	a.pod("mapped", func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = mapped()
	})
	a.container("mapped", "root", `cat /proc/self/uid_map; touch /own; `+sleeps, true, func(c *runtimeapi.ContainerConfig) { c.Mounts = nil })
	if !a.OldContainerd() { // it knows no volumes of images
		a.pod("mounting", nil)
		a.container("mounting", "image", `cat /image/data/hostname; `+sleeps, true, func(c *runtimeapi.ContainerConfig) {
			c.Mounts = append(c.Mounts, &runtimeapi.Mount{ContainerPath: "/image", Image: &runtimeapi.ImageSpec{Image: volumeImage}, Readonly: true})
		})
	}
	a.pod("waiting", nil)
	a.container("waiting", "created", "echo started; "+sleeps, false, nil)
	a.pod("stopped", nil)
	a.container("stopped", "was", sleeps, true, nil)
	if _, err := a.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: a.pods["stopped"]}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ended", "init", "was"} {
		a.Ended(a.ids[name])
	}
	a.Until("the survivor has survived", func() bool { return strings.Contains(a.Log(a.ids["survivor"]), "survived") })
	a.Until("the logger has written", func() bool { return strings.Count(a.Log(a.ids["logger"]), "\n") > 300 })
	a.look()
	return a
}

// look notes how everything is.
func (a *adopted) look() {
	a.t.Helper()
	a.was, a.pids = map[string]*runtimeapi.ContainerStatus{}, map[string]int{}
	for name, id := range a.ids {
		a.was[name] = a.Container(id)
		if a.was[name].GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			a.pids[name] = a.Pid(id)
		}
	}
	for name, id := range a.pods {
		if name != "stopped" {
			a.pids["pod "+name] = a.SandboxPid(id)
		}
	}
}

// switchover runs `berth adopt` with a restart of containerd, and a start of berth. down is called
// while containerd is away.
func (a *adopted) switchover(down func()) string {
	a.t.Helper()
	var began time.Time
	return a.AdoptWith(nil,
		node.Step{Name: "switch", Do: func() { began = time.Now(); a.PluginOff(down) }},
		node.Step{Name: "start", Do: func() {
			a.StartBerth()
			a.t.Logf("no runtime has answered for %s at most", time.Since(began).Round(time.Millisecond))
		}})
}

// PROPERTIES 46: pods of many kinds change from containerd's CRI plug-in to berth while they run. No
// process ends, nothing is counted as a restart, exit codes are exact, and what of a log is missing
// is said in it. Everything works afterwards, and nothing is left of them.
func TestPodsAreAdoptedWhileTheyRun(t *testing.T) {
	t.Parallel()
	a := startAdopted(t)
	out, code := a.Adopt("--dry-run")
	if code != 0 || !strings.Contains(out, "logger") || !strings.Contains(out, "48 KiB") {
		t.Fatalf("the dry run ended with %d:\n%s", code, out)
	}
	t.Logf("%s", out)
	if out, code = a.Adopt(); code == 0 || !strings.Contains(out, "disabled_plugins") {
		t.Errorf("adopted under a plug-in that serves: %d\n%s", code, out)
	}
	t.Logf("%s", a.switchover(a.endSome))
	for _, name := range []string{"ender", "hungry", "survivor"} {
		delete(a.was, name)
	}
	a.sameAsBefore()
	a.logIsWhole("logger")
	node.ExpectExit(t, a.Measured(a.ids["hungry"]), 137, "OOMKilled")
	node.ExpectExit(t, a.Measured(a.ids["survivor"]), 137, "Error")
	if st := a.Measured(a.ids["ender"]); st.GetExitCode() != 42 || !strings.Contains(a.Log(a.ids["ender"]), "last words") {
		t.Errorf("what ended while containerd was away: %v\n%s", st, a.Log(a.ids["ender"]))
	}
	a.works()
	a.nothingLeft()
}

// endSome ends a container while containerd is away.
func (a *adopted) endSome() {
	if err := os.WriteFile(a.shared+"/end", nil, 0o600); err != nil {
		a.t.Fatal(err)
	}
	for _, name := range []string{"ender", "hungry", "survivor"} {
		a.Until("the process of "+name+" has ended", func() bool { return node.ProcessOver(a.pids[name]) })
	}
}

// nothingLeft removes all pods.
func (a *adopted) nothingLeft() {
	a.t.Helper()
	ids := []string{}
	for _, id := range a.pods {
		ids = append(ids, id)
	}
	a.RemoveAll(a.t.Context())
	a.NoLeaks(a.t.Context())
	if left := a.Addresses(); len(left) > 0 {
		a.t.Errorf("addresses are left: %q", left)
	}
	if left := a.PluginLeft(ids...); len(left) > 0 {
		a.t.Errorf("left of the plug-in's:\n%s", strings.Join(left, "\n"))
	}
}

// startOf returns when a container was started. The plug-in stamps that when the call returns, by
// which time a short program has ended; berth shows no end before its start.
func startOf(st *runtimeapi.ContainerStatus) int64 {
	if end := st.GetFinishedAt(); end != 0 {
		return min(st.GetStartedAt(), end)
	}
	return st.GetStartedAt()
}

// sameAsBefore compares how everything is with what look has noted.
func (a *adopted) sameAsBefore() {
	a.t.Helper()
	for name, was := range a.was {
		is := a.Container(a.ids[name])
		for _, c := range []struct {
			what    string
			was, is any
		}{
			{"attempt", was.GetMetadata().GetAttempt(), is.GetMetadata().GetAttempt()},
			{"state", was.GetState(), is.GetState()},
			{"code", was.GetExitCode(), is.GetExitCode()},
			{"reason", was.GetReason(), is.GetReason()},
			{"creation", was.GetCreatedAt(), is.GetCreatedAt()},
			{"start", startOf(was), startOf(is)},
			{"end", was.GetFinishedAt(), is.GetFinishedAt()},
			{"log", was.GetLogPath(), is.GetLogPath()},
			{"image ID", cmp.Or(was.GetImageId(), is.GetImageId()), cmp.Or(is.GetImageId(), was.GetImageId())}, // the one of 1.7 does not say it
			{"image reference", was.GetImageRef(), is.GetImageRef()},
			{"image", was.GetImage().GetImage(), is.GetImage().GetImage()},
			{"memory", was.GetResources().GetLinux().GetMemoryLimitInBytes(), is.GetResources().GetLinux().GetMemoryLimitInBytes()},
		} {
			if c.what == "reason" && is.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
				continue // the plug-in gives a container that has survived an OOM kill one
			}
			if c.was != c.is {
				a.t.Errorf("container %s: its %s was %v, and is %v", name, c.what, c.was, c.is)
			}
		}
		if pid := a.pids[name]; pid != 0 && a.Pid(a.ids[name]) != pid {
			a.t.Errorf("container %s has another process", name)
		}
	}
	for name, id := range a.pods {
		resp, err := a.PodSandboxStatus(a.t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
		if err != nil {
			a.t.Fatal(err)
		}
		st := resp.GetStatus()
		if ready := st.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY; ready != (name != "stopped") || st.GetMetadata().GetAttempt() != 3 {
			a.t.Errorf("pod %s: %v", name, st)
		}
		if (name == "plain" || name == "mapped" && !a.Berth.Over()) && st.GetNetwork().GetIp() == "" {
			a.t.Errorf("pod %s has no address", name)
		}
		if pid := a.pids["pod "+name]; pid != 0 && a.SandboxPid(id) != pid {
			a.t.Errorf("pod %s has another process", name)
		}
	}
}

// logIsWhole expects all numbers in the log of a container that writes them, and waits until there
// are more of them.
func (a *adopted) logIsWhole(name string) {
	a.t.Helper()
	log := func() string { return a.Log(a.ids[name]) }
	had := len(log())
	a.Until("the log grows", func() bool { return len(log()) > had+200000 })
	node.Numbered(a.t, log())
}

// works does with adopted pods what the kubelet and people do.
func (a *adopted) works() {
	t, ctx := a.t, a.t.Context()
	for _, name := range []string{"sleeper", "onhost", "inhost", "sidecar", "terminal", "root", "image"} {
		if a.ids[name] == "" {
			continue
		}
		resp, err := a.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: a.ids[name], Cmd: []string{"sh", "-c", "echo $((6*7))"}, Timeout: 10})
		if err != nil || string(resp.GetStdout()) != "42\n" {
			t.Errorf("exec in %s: %v %v", name, resp, err)
		}
	}
	if st, err := a.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: a.ids["sleeper"]}); err != nil || st.GetStats().GetMemory().GetWorkingSetBytes().GetValue() == 0 {
		t.Errorf("statistics: %v %v", st, err)
	}
	if _, err := a.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: a.ids["sleeper"], Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 80 << 20}}); err != nil {
		t.Errorf("update: %v", err)
	}
	if got := a.Container(a.ids["sleeper"]).GetResources().GetLinux().GetMemoryLimitInBytes(); got != 80<<20 {
		t.Errorf("the limit is %d after the update", got)
	}
	for name, tty := range map[string]bool{"terminal": true, "input": false} {
		resp, err := a.Attach(ctx, &runtimeapi.AttachRequest{ContainerId: a.ids[name], Stdin: true, Stdout: true, Tty: tty, Stderr: !tty})
		if err != nil {
			t.Errorf("attach to %s: %v", name, err)
			continue
		}
		s := dialSocket(t, resp.GetUrl())
		s.send(t, stdinChannel, "hello\n")
		a.Until("it has got a line", func() bool { return strings.Contains(s.text(stdoutChannel), "got hello") })
		if log := a.Log(a.ids[name]); !strings.Contains(log, "got hello") || strings.Contains(log, "over") {
			t.Errorf("the log of %s: %s", name, log)
		}
	}
	resp, err := a.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: a.pods["plain"]})
	if err != nil {
		t.Fatal(err)
	}
	if got, refused := client.Talk(t, client.PortForward(t, resp.GetUrl()), "8080", "adopted", "GET /f HTTP/1.0\r\n\r\n"); !strings.HasSuffix(got, "served") {
		t.Errorf("port-forward: %q %q", got, refused)
	}
	// The container that was created under the plug-in is started, and some are made in adopted pods.
	if _, err := a.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: a.ids["created"]}); err != nil {
		t.Errorf("start what was created: %v", err)
	}
	a.Until("it writes", func() bool { return strings.Contains(a.Log(a.ids["created"]), "started") })
	for pod, script := range map[string]string{"plain": "hostname; cat /etc/hostname; ip addr show eth0; " + sleeps, "shared": "hostname; " + sleeps, "hostpid": "hostname; " + sleeps, "mapped": "hostname; touch /own; " + sleeps} {
		if pod == "mapped" && a.OldContainerd() {
			continue // see refusedInMapped
		}
		name := "new-in-" + pod
		a.container(pod, name, script, true, func(c *runtimeapi.ContainerConfig) { c.Mounts = nil })
		a.Until("it writes", func() bool { return strings.Contains(a.Log(a.ids[name]), a.cfgs[pod].GetHostname()) })
	}
	if a.OldContainerd() {
		a.refusedInMapped()
	}
	a.Until("it has an address", func() bool { return strings.Contains(a.Log(a.ids["new-in-plain"]), "inet ") })
	for _, name := range []string{"sleeper", "onhost", "inhost", "sidecar"} {
		if _, err := a.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: a.ids[name], Timeout: 10}); err != nil {
			t.Errorf("stop %s: %v", name, err)
		}
		if st := a.Container(a.ids[name]); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetExitCode() != 7 {
			t.Errorf("%s was stopped: %v", name, st)
		}
	}
	if _, err := a.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: a.ids["ended"]}); err != nil {
		t.Errorf("remove: %v", err)
	}
}

// refusedInMapped expects that no container is made in a pod with a user namespace, since the
// snapshotter of containerd 1.7 does not shift the owners of files.
func (a *adopted) refusedInMapped() {
	a.t.Helper()
	c := node.ContainerConfig("new", "true")
	c.Linux.SecurityContext.NamespaceOptions = a.cfgs["mapped"].GetLinux().GetSecurityContext().GetNamespaceOptions()
	_, err := a.CreateContainer(a.t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: a.pods["mapped"], Config: c, SandboxConfig: a.cfgs["mapped"]})
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "shift the owners") {
		a.t.Errorf("a container in a pod with a user namespace: %v", err)
	}
}

// PROPERTIES 46: what was adopted is given back while it runs, with what has happened under berth. What
// the plug-in cannot have is named before anything is touched.
func TestAdoptedPodsAreGivenBack(t *testing.T) {
	t.Parallel()
	a := startAdopted(t)
	a.switchover(func() {})
	a.sameAsBefore()
	a.endSome()
	if _, err := a.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: a.ids["sleeper"], Timeout: 10}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: a.pods["hostpid"]}); err != nil {
		t.Fatal(err)
	}
	delete(a.ids, "inhost")
	delete(a.pods, "hostpid")
	for _, name := range []string{"ender", "hungry", "survivor"} {
		a.Ended(a.ids[name])
	}
	a.pod("own", nil)
	a.Berth.Kill(syscall.SIGTERM)
	for _, args := range [][]string{{"--back", "--dry-run"}, {"--back"}} {
		if out, code := a.Adopt(args...); code == 0 || !strings.Contains(out, "berth has made it") || !strings.Contains(out, a.cfgs["own"].GetMetadata().GetName()) {
			t.Errorf("%v ended with %d:\n%s", args, code, out)
		}
	}
	a.StartBerth()
	if _, err := a.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: a.pods["own"]}); err != nil {
		t.Fatal(err)
	}
	delete(a.pods, "own")
	a.look()
	a.Berth.Kill(syscall.SIGTERM)
	out, code := a.Adopt("--back")
	if code != 0 {
		t.Fatalf("--back ended with %d:\n%s", code, out)
	}
	t.Logf("%s", out)
	if forgets := strings.Contains(out, "The plug-in has not kept how it is connected"); forgets != a.OldContainerd() || forgets && !strings.Contains(out, "\n  default/"+a.cfgs["mapped"].GetMetadata().GetName()) {
		t.Error("it does not say of which pods the plug-in forgets the network")
	}
	a.PluginOn()
	a.sameAsBefore()
	had := len(a.Log(a.ids["logger"]))
	a.Until("the log grows under the plug-in", func() bool { return len(a.Log(a.ids["logger"])) > had+100000 })
	if resp, err := a.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: a.ids["sidecar"], Cmd: []string{"echo", "42"}, Timeout: 10}); err != nil || string(resp.GetStdout()) != "42\n" {
		t.Errorf("exec under the plug-in: %v %v", resp, err)
	}
	if _, err := a.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: a.ids["created"]}); err != nil {
		t.Errorf("start what was created: %v", err)
	}
	a.removedByPlugin()
}

// PROPERTIES 46: what ends while containerd restarts on the way back has its exact code with the plug-in
// as well, with its last words, and its reason. Nobody's stdin ends.
func endsOnTheWayBackAreExact(t *testing.T) {
	a := startAdopted(t)
	a.switchover(func() {})
	a.Berth.Kill(syscall.SIGTERM)
	t.Logf("%s", a.switchBack(a.endSome))
	if st := a.Ended(a.ids["ender"]); st.GetExitCode() != 42 || st.GetReason() != "Error" || strings.Count(a.Log(a.ids["ender"]), "last words") != 1 {
		t.Errorf("what ended while containerd was away: %v\n%s", st, a.Log(a.ids["ender"]))
	}
	if st := a.Ended(a.ids["survivor"]); st.GetExitCode() != 137 {
		t.Errorf("what ended with 137 while containerd was away: %v", st)
	}
	a.Until("what the OOM killer has ended is said to be so", func() bool {
		st := a.Ended(a.ids["hungry"])
		return st.GetExitCode() == 137 && st.GetReason() == "OOMKilled"
	})
	for _, name := range []string{"ender", "hungry", "survivor"} {
		delete(a.was, name)
	}
	a.sameAsBefore()
	for _, name := range []string{"terminal", "input"} {
		if log := a.Log(a.ids[name]); strings.Contains(log, "over") {
			t.Errorf("the stdin of %s has ended: %s", name, log)
		}
	}
	a.removedByPlugin()
}

// switchBack runs `berth adopt --back` with a restart of containerd that turns the plug-in on. down
// is called while it is away.
func (a *adopted) switchBack(down func()) string {
	a.t.Helper()
	return a.AdoptWith([]string{"--back"}, node.Step{Name: "switch", Do: func() {
		a.Containerd.Kill(syscall.SIGTERM)
		down()
		a.PluginOn()
	}})
}

// removedByPlugin removes all pods under the plug-in.
func (a *adopted) removedByPlugin() {
	a.t.Helper()
	ids := []string{}
	for _, id := range a.pods {
		ids = append(ids, id)
	}
	if id := a.pods["mapped"]; id != "" && a.OldContainerd() {
		a.Disconnect(id)
	}
	a.RemoveAll(a.t.Context())
	if left := a.PluginLeft(ids...); len(left) > 0 {
		a.t.Errorf("left of the plug-in's:\n%s", strings.Join(left, "\n"))
	}
}

// PROPERTIES 46: `berth adopt` and its way back are killed at random, again and again, and go on in
// either direction. berth serves none of the pods while they are nobody's, no process ends, and the
// pods are whole on both sides.
func anAdoptionThatIsKilledGoesOn(t *testing.T) {
	a := startAdopted(t)
	a.PluginOff(func() {})
	cut := func(args ...string) {
		p := a.SpawnAdopt(args...)
		select {
		case <-time.After(time.Duration(20+rand.IntN(140)) * time.Millisecond):
			p.Kill(syscall.SIGKILL)
		case <-p.Done():
		}
		out := p.Output()
		if i := strings.LastIndex(out, "berth: "); i >= 0 {
			t.Errorf("berth adopt %v: %s", args, out[i:])
		}
	}
	refused := 0
	for range 8 {
		cut()
		b := a.SpawnBerth()
		a.Until("berth serves, or refuses to", func() bool { return b.Over() || strings.Contains(b.Output(), "berth is ready") })
		if b.Over() {
			if !strings.Contains(b.Output(), "berth adopt` was cut off") {
				t.Errorf("berth ended:\n%s", b.Output())
			}
			refused++
		}
		b.Kill(syscall.SIGKILL)
		cut("--back")
	}
	t.Logf("berth has refused %d times to serve what is nobody's", refused)
	if out, code := a.Adopt(); code != 0 {
		t.Fatalf("berth adopt ended with %d:\n%s", code, out)
	}
	a.StartBerth()
	a.sameAsBefore()
	a.Berth.Kill(syscall.SIGTERM)
	// By mistake: the plug-in sees nothing of what berth has, and leaves it alone.
	a.PluginOn()
	if all, err := a.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{}); err != nil || len(all.GetItems()) > 0 {
		t.Errorf("the plug-in has pods of berth's: %v %v", all, err)
	}
	if all, err := a.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}); err != nil || len(all.GetContainers()) > 0 {
		t.Errorf("the plug-in has containers of berth's: %v %v", all, err)
	}
	a.PluginOff(func() {})
	for range 8 {
		cut("--back")
		cut()
	}
	if out, code := a.Adopt("--back"); code != 0 {
		t.Fatalf("berth adopt --back ended with %d:\n%s", code, out)
	}
	a.PluginOn()
	a.sameAsBefore()
	a.removedByPlugin()
}
