// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Nodes of berth and of containerd's CRI plug-in are one cluster: a Deployment and its Service are on
// both, and pods move from the one to the other and back without a request that is lost.
func TestMixedNodes(t *testing.T) {
	c := start(t, options{nodes: 3, foreign: 1})
	c.serves(replicas)
	t.Cleanup(func() { c.print("mixed") })
	for _, m := range c.members {
		runtime := "berth://"
		if m.foreign {
			runtime = "containerd://"
		}
		if err := c.runs(m, runtime); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
	c.steps(
		step{"NothingHappens", c.nothingHappens},
		step{"ADaemonSetIsOnEachNode", c.daemonSet},
		step{"EachPodAnswersEachNode", c.across},
		step{"ADeploymentIsRolledOutOverBoth", c.rollOut},
		step{"PodsMoveFromContainerdToBerthAndBack", c.move},
		step{"BerthIsKilledBesideContainerd", c.killedBeside},
		step{"BerthAdoptsThePodsOfContainerd", c.adopted},
	)
}

// on says how many pods of web are Ready on each node.
func (c *cluster) on() (map[string]int, error) {
	pods, err := c.pods("default", "app=web")
	on := map[string]int{}
	for i := range pods {
		if podReady(&pods[i]) && pods[i].DeletionTimestamp == nil {
			on[pods[i].Spec.NodeName]++
		}
	}
	return on, err
}

// everywhere waits until pods of web are Ready on each node.
func (c *cluster) everywhere() {
	c.t.Helper()
	c.until("pods of web are on each node", func() error {
		on, err := c.on()
		if err == nil && len(on) != len(c.members) {
			err = fmt.Errorf("they are on %v", on)
		}
		return err
	})
}

// across calls each pod from each node, and each answers.
func (c *cluster) across() {
	c.everywhere()
	c.names()
	web, err := c.pods("default", "app=web")
	if err != nil {
		c.t.Fatal(err)
	}
	agents, err := c.pods("default", "app=agent")
	if err != nil {
		c.t.Fatal(err)
	}
	for i := range agents {
		agent := &agents[i]
		get := func(url string) string {
			return c.must("exec", agent.Name, "--", "wget", "-q", "-O", "-", url)
		}
		if out := get("http://web.default.svc.cluster.local/"); !strings.HasPrefix(out, "v") {
			c.t.Errorf("the Service answers %q on %s", out, agent.Spec.NodeName)
		}
		for j := range web {
			if out := get("http://" + web[j].Status.PodIP + ":8080/"); !strings.Contains(out, web[j].Name) {
				c.t.Errorf("%s on %s answers %q on %s", web[j].Name, web[j].Spec.NodeName, out, agent.Spec.NodeName)
			}
		}
	}
}

// move drains the node of containerd, so that all pods of web are on nodes of berth, then the nodes of
// berth, so that all are on the one of containerd, and then spreads them again.
func (c *cluster) move() {
	c.rest()
	foreign := c.members[len(c.members)-1]
	u := c.watch("the node of containerd is drained", c.members...)
	c.empty(foreign)
	c.until("all pods of web are on nodes of berth", func() error { return c.none(foreign) })
	u.done().unharmed(c.t)
	c.must("uncordon", foreign.name)

	c.rest()
	u = c.watch("the nodes of berth are drained", c.members...)
	for _, m := range c.berths() {
		c.empty(m, "--pod-selector=app=web")
	}
	c.until("all pods of web are on the node of containerd", func() error { return c.none(c.berths()...) })
	u.done().unharmed(c.t)
	for _, m := range c.berths() {
		c.must("uncordon", m.name)
	}

	u = c.watch("a roll-out spreads the pods over both", c.members...)
	c.spread()
	c.everywhere()
	u.done().unharmed(c.t)
}

// none says whether web is whole with no pod on some nodes.
func (c *cluster) none(members ...*member) error {
	on, err := c.on()
	if err != nil {
		return err
	}
	ready := 0
	for _, n := range on {
		ready += n
	}
	for _, m := range members {
		if on[m.name] > 0 || ready != replicas {
			return fmt.Errorf("pods are on %v", on)
		}
	}
	return nil
}

// killedBeside kills the nodes' berths, while pods of web are on the node of containerd as well.
func (c *cluster) killedBeside() {
	c.rest()
	u := c.watch("berth is killed three times on its nodes", c.members...)
	for range 3 {
		c.kill()
		u.enough(100)
		c.rest()
	}
	u.done().streamless().quiet(c.t)
}

// PROPERTIES 46: berth takes the place of containerd's CRI plug-in under the pods of a node, and gives
// them back. To the cluster they are the same pods, and no request is lost. A kubelet that is started
// anew takes some of them for not Ready until it has probed them.
func (c *cluster) adopted() {
	c.everywhere()
	c.rest()
	last := c.members[len(c.members)-1]
	before := last.running(c)
	for _, turn := range []struct {
		what, runtime string
		change        func()
	}{
		{"berth adopts the pods of containerd", "berth://", func() {
			last.PluginOff(func() {})
			last.adopt()
			last.StartBerth()
			last.foreign = false
		}},
		{"containerd gets them back", "containerd://", func() {
			last.Berth.Kill(syscall.SIGTERM)
			last.adopt("--back")
			last.PluginOn()
			last.foreign = true
		}},
	} {
		u := c.watch(turn.what, c.members...)
		last.kubelet.Kill(syscall.SIGTERM)
		turn.change()
		last.configure()
		last.startKubelet()
		c.until("the cluster knows that "+last.name+" has another runtime", func() error { return c.runs(last, turn.runtime) })
		u.enough(300)
		c.rest()
		if now := last.running(c); !sameNames(before, now) {
			c.t.Errorf("the node ran %v, and runs %v", before, now)
		}
		r := u.done().streamless()
		r.unready = nil
		r.quiet(c.t)
	}
}

// sameNames reports whether two lists have the same names.
func sameNames(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// adopt runs `berth adopt` on a node.
func (m *member) adopt(args ...string) {
	m.c.t.Helper()
	if out, code := m.Adopt(args...); code != 0 {
		m.c.t.Fatalf("berth adopt %v ended with %d:\n%s", args, code, out)
	}
}
