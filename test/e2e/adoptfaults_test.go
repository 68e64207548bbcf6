// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// PROPERTIES 46: whatever happens to an adoption, or meanwhile, on both ways. Each of these takes a
// dozen seconds: a commit takes a third of them.
func TestAdoptionsUnderFaults(t *testing.T) {
	t.Parallel()
	type fault struct {
		name string
		test func(*testing.T)
	}
	for _, f := range node.Share(t, "faults", 3, nil,
		fault{"killed", anAdoptionThatIsKilledGoesOn},
		fault{"killed in a command", anAdoptionThatIsKilledInACommandGoesOn},
		fault{"containerd and shims killed", anAdoptionOutlivesContainerdAndShims},
		fault{"pods terminate or crash", podsThatTerminateOrCrashAreAdopted},
		fault{"ends on the way back", endsOnTheWayBackAreExact},
		fault{"another client", whatAnotherClientHasMadeIsNamedAndLeft},
		fault{"a pod cannot be adopted", aPodThatCannotBeAdoptedMayEnd},
	) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			f.test(t)
		})
	}
}

// PROPERTIES 46: containerd is killed again and again while pods are taken over and given back, and
// the next call goes on. Then the shims of two pods are killed as well, one on each way: their
// containers have ended, and nothing else has changed.
func anAdoptionOutlivesContainerdAndShims(t *testing.T) {
	a := startAdopted(t)
	a.PluginOff(func() {})
	done := 0
	for range 5 {
		for _, args := range [][]string{nil, {"--back"}} {
			p := a.SpawnAdopt(args...)
			select {
			case <-time.After(time.Duration(20+rand.IntN(100)) * time.Millisecond):
			case <-p.Done():
			}
			a.Containerd.Kill(syscall.SIGKILL)
			a.StartContainerd()
			if p.Wait() == 0 {
				done++
			}
			if out, code := a.Adopt(args...); code != 0 {
				t.Fatalf("berth adopt %v ended with %d after containerd was killed:\n%s", args, code, out)
			}
		}
	}
	t.Logf("%d of 10 calls were not cut off", done)
	a.PluginOn()
	a.sameAsBefore()

	a.switchover(func() { a.killShim("hostpid") })
	a.endedWithItsShim("hostpid", "inhost")
	a.sameAsBefore()

	a.Berth.Kill(syscall.SIGTERM)
	t.Logf("%s", a.switchBack(func() { a.killShim("hostnet") }))
	a.endedWithItsShim("hostnet", "onhost")
	a.sameAsBefore()
	a.removedByPlugin()
}

// killShim kills the shim of a pod.
func (a *adopted) killShim(pod string) {
	a.t.Helper()
	pid := a.Shims()[a.pods[pod]]
	if pid == 0 {
		a.t.Fatalf("pod %s has no shim", pod)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		a.t.Fatal(err)
	}
	a.Until("the shim has ended", func() bool { return node.ProcessOver(pid) })
	a.SweepSocket(a.pods[pod])
}

// endedWithItsShim expects that a pod whose shim was killed is not ready, that its container has
// ended, which nobody knows how, and that the pod can be removed.
func (a *adopted) endedWithItsShim(pod, container string) {
	a.t.Helper()
	if st := a.Ended(a.ids[container]); st.GetExitCode() != 137 && st.GetExitCode() != 255 {
		a.t.Errorf("container %s, whose shim was killed: %v", container, st)
	}
	a.Until("the pod is not ready", func() bool {
		resp, err := a.PodSandboxStatus(a.t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: a.pods[pod]})
		return err == nil && resp.GetStatus().GetState() == runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	})
	if _, err := a.RemovePodSandbox(a.t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: a.pods[pod]}); err != nil {
		a.t.Error(err)
	}
	delete(a.pods, pod)
	delete(a.ids, container)
	delete(a.was, container)
}

// PROPERTIES 46: a container that is being stopped goes on with its grace period, and the call that
// is repeated stops it, on both ways. The attempts of a container that crashes again and again stay
// what they are, also of the one that crashes meanwhile, and the next one is counted from there.
func podsThatTerminateOrCrashAreAdopted(t *testing.T) {
	a := startAdopted(t)
	a.pod("going", nil)
	for _, name := range []string{"there", "back"} {
		a.container("going", name, `trap 'echo asked; until [ -e /shared/`+name+` ]; do sleep 0.05; done; exit 5' TERM; while :; do sleep 0.1; done`, true, nil)
	}
	a.pod("crashing", nil)
	crash := func(name, script string, attempt uint32) {
		a.container("crashing", name, script, true, func(c *runtimeapi.ContainerConfig) {
			c.Metadata.Name, c.Metadata.Attempt = "crash", attempt
		})
	}
	crash("crash0", "exit 1", 0)
	crash("crash1", "exit 2", 1)
	crash("crash2", `until [ -e /shared/crash ]; do sleep 0.05; done; exit 3`, 2)
	a.Ended(a.ids["crash0"])
	a.Ended(a.ids["crash1"])
	a.look()

	cutOff := a.beginStop("there")
	a.switchover(func() { a.touch("crash") })
	if err := <-cutOff; err == nil {
		t.Error("a stop has succeeded that nothing has obeyed")
	}
	a.endStop("there")
	a.crashed(3)
	crash("crash3", sleeps, 3)

	cutOff = a.beginStop("back")
	a.Berth.Kill(syscall.SIGTERM)
	if err := <-cutOff; err == nil {
		t.Error("a stop has succeeded that nothing has obeyed")
	}
	if out, code := a.Adopt("--back"); code == 0 || !strings.Contains(out, "has made its container crash") {
		t.Errorf("--back ended with %d:\n%s", code, out)
	}
	a.StartBerth()
	if _, err := a.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: a.ids["crash3"]}); err != nil {
		t.Fatal(err)
	}
	delete(a.ids, "crash3")
	a.Berth.Kill(syscall.SIGTERM)
	a.switchBack(func() {})
	a.endStop("back")
	a.crashed(3)
	a.removedByPlugin()
}

// touch makes a file that containers wait for.
func (a *adopted) touch(name string) {
	a.t.Helper()
	if err := os.WriteFile(a.shared+"/"+name, nil, 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// beginStop has a container stopped, which goes on until it is allowed to end. The call returns
// once the runtime is gone.
func (a *adopted) beginStop(name string) <-chan error {
	a.t.Helper()
	returned := make(chan error, 1)
	client, ctx := a.Client, a.t.Context()
	go func() {
		_, err := client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: a.ids[name], Timeout: 300})
		returned <- err
	}()
	a.Until("it is asked to end", func() bool { return strings.Contains(a.Log(a.ids[name]), "asked") })
	return returned
}

// endStop repeats the stop of a container, which is allowed to end.
func (a *adopted) endStop(name string) {
	a.t.Helper()
	if st := a.Container(a.ids[name]); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		a.t.Errorf("%s has ended: %v", name, st)
	}
	returned := make(chan error, 1)
	client, ctx := a.Client, a.t.Context()
	go func() {
		_, err := client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: a.ids[name], Timeout: 300})
		returned <- err
	}()
	a.touch(name)
	if err := <-returned; err != nil {
		a.t.Errorf("stop %s: %v", name, err)
	}
	if st := a.Ended(a.ids[name]); st.GetExitCode() != 5 {
		a.t.Errorf("%s was stopped: %v", name, st)
	}
}

// crashed expects attempts of a container that have ended with 1, 2, 3 and so on.
func (a *adopted) crashed(attempts int) {
	a.t.Helper()
	for i := range attempts {
		st := a.Ended(a.ids["crash"+string(rune('0'+i))])
		if st.GetMetadata().GetAttempt() != uint32(i) || st.GetExitCode() != int32(i+1) || st.GetReason() != "Error" {
			a.t.Errorf("attempt %d: %v", i, st)
		}
	}
}

// PROPERTIES 46: what `ctr` or nerdctl has made in the plug-in's namespace is not a pod: it is
// named, and left as it is.
func whatAnotherClientHasMadeIsNamedAndLeft(t *testing.T) {
	a := startAdopted(t)
	a.MakeForeign("foreign")
	before := a.Foreign("foreign")
	out, code := a.Adopt("--dry-run")
	if code != 0 || !strings.Contains(out, "foreign: it is not the plug-in's: ctr, nerdctl or another client of containerd has made it") {
		t.Errorf("the dry run ended with %d:\n%s", code, out)
	}
	a.switchover(func() {})
	a.sameAsBefore()
	a.Berth.Kill(syscall.SIGTERM)
	a.switchBack(func() {})
	a.sameAsBefore()
	if after := a.Foreign("foreign"); after != before {
		t.Errorf("it was\n%s\nand is\n%s", before, after)
	}
	a.RemoveForeign("foreign")
	a.removedByPlugin()
}

// PROPERTIES 46: a pod that cannot be adopted keeps all others with the plug-in, unless the
// operator names it. Then the plug-in stops it, as gently as it asks, and removes it, and the
// others are adopted. What can be adopted does not end, also if it is named.
func aPodThatCannotBeAdoptedMayEnd(t *testing.T) {
	a := newAdopted(t)
	a.pod("good", nil)
	a.container("good", "stays", sleeps, true, nil)
	a.pod("bad", nil)
	a.container("bad", "polite", `trap 'touch /shared/asked; exit 0' TERM; while :; do sleep 0.1; done`, true, nil)
	a.look()
	bad, good := "default/"+a.cfgs["bad"].GetMetadata().GetName(), "default/"+a.cfgs["good"].GetMetadata().GetName()
	second := "/var/lib/cni/results/second-" + a.pods["bad"] + "-eth1"
	t.Cleanup(func() { _ = os.Remove(second) })
	if err := os.WriteFile(second, []byte(`{"kind":"cniCacheV1","containerId":"`+a.pods["bad"]+`","config":"e30=","ifName":"eth1","networkName":"second","result":{}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	refused := func(want string, args ...string) {
		t.Helper()
		if out, code := a.Adopt(args...); code == 0 || !strings.Contains(out, want) {
			t.Errorf("berth adopt %v ended with %d:\n%s", args, code, out)
		}
		a.sameAsBefore()
	}
	const onlySwitch = "--switch=exit 1"
	refused("eth1", "--dry-run")
	refused("nothing was changed", onlySwitch)
	refused("nothing was changed", onlySwitch, "--end", good)
	refused("give the command that restarts containerd as --switch", "--end", bad)
	if out, code := a.Adopt("--dry-run", "--end", bad, "--end", good); code != 0 || !strings.Contains(out, "Ends and is removed") || !strings.Contains(out, "none of it ends:\n  "+good) {
		t.Errorf("the dry run ended with %d:\n%s", code, out)
	}
	a.sameAsBefore()
	a.PluginOff(func() {})
	if out, code := a.Adopt("--end", bad); code == 0 || !strings.Contains(out, "is off: turn it on again") {
		t.Errorf("berth adopt without the plug-in ended with %d:\n%s", code, out)
	}
	a.PluginOn()
	a.sameAsBefore()

	out := a.AdoptWith([]string{"--end", a.pods["bad"][:13], "--end", good}, node.Step{Name: "switch", Do: func() {
		if _, err := os.Stat(a.shared + "/asked"); err != nil {
			t.Errorf("the pod was not asked to end before the switch: %v", err)
		}
		if !node.ProcessOver(a.pids["polite"]) {
			t.Error("the pod runs after its end")
		}
		a.PluginOff(func() {})
	}}, node.Step{Name: "start", Do: a.StartBerth})
	t.Logf("%s", out)
	for _, m := range []map[string]string{a.pods, a.ids} {
		delete(m, "bad")
		delete(m, "polite")
	}
	delete(a.was, "polite")
	a.sameAsBefore()
	if all, err := a.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{}); err != nil || len(all.GetItems()) != 1 {
		t.Errorf("berth has %v, %v", all, err)
	}
	a.nothingLeft()
}

// PROPERTIES 46: `berth adopt` is killed while each of its commands runs, on both ways: before
// containerd is stopped, while it is away, once it is there again, and before and after berth is
// started. The next call goes on, every process stays, and what ends while containerd is away has
// its code.
func anAdoptionThatIsKilledInACommandGoesOn(t *testing.T) {
	a := startAdopted(t)
	nothing := func() {}
	away := func() {} // what happens while containerd is away
	off := func(then func()) { a.Containerd.Kill(syscall.SIGTERM); then() }
	there := []node.Step{
		{Name: "switch", Do: func() { a.PluginOff(away) }},
		{Name: "start", Do: a.StartBerth},
	}
	for _, kill := range []struct {
		name string
		// Before the kill, and after it, on the way to berth and back.
		there []node.Step
		rest  func()
		back  func()
		again func()
	}{
		{
			name:  "before containerd is stopped",
			there: []node.Step{{Name: "switch", Do: nothing}},
			rest:  func() { a.sameAsBefore(); a.AdoptWith(nil, there...) },
			back:  nothing,
			again: a.PluginOn,
		},
		{
			name:  "while containerd is away",
			there: []node.Step{{Name: "switch", Do: func() { off(a.endSome) }}},
			rest:  func() { a.StartContainerd(); a.AdoptWith(nil, there[1]) },
			back:  func() { off(nothing) },
			again: a.PluginOn,
		},
		{
			name:  "once containerd is there again",
			there: there[:1],
			rest:  func() { a.AdoptWith(nil, there[1]) },
			back:  func() { off(a.PluginOn) },
			again: nothing,
		},
		{
			name:  "before berth is started",
			there: []node.Step{there[0], {Name: "start", Do: nothing}},
			rest:  a.StartBerth,
			back:  nothing,
			again: func() { a.AdoptWith([]string{"--back"}, node.Step{Name: "switch", Do: a.PluginOn}) },
		},
		{
			name:  "once berth serves",
			there: there,
			rest:  nothing,
			back:  nothing,
			again: a.PluginOn,
		},
	} {
		a.AdoptCutOff(nil, kill.there...)
		kill.rest()
		if kill.name == "while containerd is away" {
			if st := a.Measured(a.ids["ender"]); st.GetExitCode() != 42 {
				t.Errorf("what ended while containerd was away: %v", st)
			}
			for _, name := range []string{"ender", "hungry", "survivor"} {
				a.Ended(a.ids[name])
				delete(a.was, name)
			}
		}
		a.sameAsBefore()
		a.Berth.Kill(syscall.SIGTERM)
		a.AdoptCutOff([]string{"--back"}, node.Step{Name: "switch", Do: kill.back})
		kill.again()
		a.sameAsBefore()
		if t.Failed() {
			t.Fatalf("killed %s", kill.name)
		}
	}
	a.removedByPlugin()
}
