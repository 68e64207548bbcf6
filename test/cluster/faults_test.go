// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// forward calls a pod through a port of the loopback interface.
func (c *cluster) forward() {
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	cmd := c.command(ctx, "port-forward", "deployment/web", ":8080")
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	m := regexp.MustCompile(`from (127\.0\.0\.1:\d+) `).FindStringSubmatch(line)
	if m == nil {
		c.t.Fatalf("port-forward: %q, %v", line, err)
	}
	for range 5 {
		resp, err := once.Get("http://" + m[1] + "/")
		if err != nil {
			c.t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.HasPrefix(string(b), "v") {
			c.t.Errorf("port-forward: %s %q %v", resp.Status, b, err)
		}
	}
}

// whole waits until a Deployment has all its pods.
func (c *cluster) whole(namespace, name string) {
	c.t.Helper()
	c.until("the Deployment "+name+" is whole", func() error {
		var d appsv1.Deployment
		err := c.get("/apis/apps/v1/namespaces/"+namespace+"/deployments/"+name, &d)
		if s := d.Status; err == nil && (s.AvailableReplicas != *d.Spec.Replicas || s.Replicas != *d.Spec.Replicas || s.UpdatedReplicas != *d.Spec.Replicas) {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
}

// rest waits until the cluster has settled after what was done to it.
func (c *cluster) rest() {
	c.t.Helper()
	c.until("the nodes are Ready", c.nodesReady)
	c.whole("default", "web")
	c.whole("kube-system", "coredns")
	c.until("all pods are Ready", func() error {
		if err := c.podsReady("kube-system", 4+len(c.members)+2); err != nil {
			return err
		}
		return c.podsReady("default", replicas+1)
	})
}

// drain empties a node for maintenance. The user notices that pods are replaced, and nothing else.
func (c *cluster) drain() {
	c.rest()
	last := c.members[len(c.members)-1]
	u := c.watch("a drain", c.members...)
	c.empty(last)
	u.done().unharmed(c.t)
	c.until("only pods of DaemonSets run on the node", func() error {
		for _, name := range last.running(c) {
			if !strings.HasPrefix(name, "kube-proxy-") && !strings.HasPrefix(name, "agent-") {
				return fmt.Errorf("%s does as well", name)
			}
		}
		return nil
	})
	c.must("uncordon", last.name)
	c.spread()
}

// empty drains a node, and waits until the pods of web are whole elsewhere.
func (c *cluster) empty(m *member, more ...string) {
	c.t.Helper()
	c.must(append([]string{"drain", m.name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=4m"}, more...)...)
	c.whole("default", "web")
}

// spread rolls web out again, which spreads its pods over all nodes.
func (c *cluster) spread() {
	c.t.Helper()
	c.must("rollout", "restart", "deployment/web")
	c.must("rollout", "status", "deployment/web", "--timeout=5m")
}

// running are the names of the pods that berth runs.
func (m *member) running(c *cluster) []string {
	c.t.Helper()
	ready := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
	list, err := m.ListPodSandbox(c.t.Context(), &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{State: ready}})
	if err != nil {
		c.t.Fatal(err)
	}
	var names []string
	for _, p := range list.GetItems() {
		names = append(names, p.GetMetadata().GetName())
	}
	return names
}

// cutOff takes a node off the network for so long that its pods are replaced. What it ran meanwhile
// ends once it is back.
func (c *cluster) cutOff() {
	c.rest()
	last := c.members[len(c.members)-1]
	others := c.members[:len(c.members)-1]
	before := slices.DeleteFunc(last.running(c), func(name string) bool { return !strings.HasPrefix(name, "web-") })
	u := c.watch("a node that is cut off", others...)
	last.cut(true)
	c.until("the node is not Ready", func() error {
		if c.nodesReady() == nil {
			return fmt.Errorf("it is")
		}
		return nil
	})
	c.until("web is whole without the node", func() error {
		pods, err := c.pods("default", "app=web")
		ready := 0
		for i := range pods {
			if podReady(&pods[i]) && pods[i].Spec.NodeName != last.name {
				ready++
			}
		}
		if err == nil && ready < replicas {
			err = fmt.Errorf("%d pods are Ready elsewhere", ready)
		}
		return err
	})
	for _, name := range before {
		if !slices.Contains(last.running(c), name) {
			c.t.Errorf("%s does not run any more on the node that is cut off", name)
		}
	}
	last.cut(false)
	c.until("the nodes are Ready", c.nodesReady)
	c.until("what was replaced has ended", func() error {
		for _, name := range last.running(c) {
			if slices.Contains(before, name) {
				return fmt.Errorf("%s still runs", name)
			}
		}
		return nil
	})
	c.rest()
	r := u.done()
	if r.restarts > 0 || r.refused > 0 || slices.ContainsFunc(r.away, func(name string) bool { return name != last.name }) {
		c.t.Errorf("the user noticed %+v", r)
	}
}

// PROPERTIES 4: berth is killed on all nodes at once, again and again. The user notices nothing, and
// the Job that runs meanwhile sees each code as it was.
func (c *cluster) killed() {
	c.rest()
	minutes := 3
	if s := os.Getenv("BERTH_CLUSTER_MINUTES"); s != "" {
		var err error
		if minutes, err = strconv.Atoi(s); err != nil {
			c.t.Fatalf("BERTH_CLUSTER_MINUTES: %v", err)
		}
	}
	const interval = 10 * time.Second
	kills := minutes * int(time.Minute/interval)
	u := c.watch(fmt.Sprintf("%d kills of berth on each node", kills), c.members...)
	check := c.ends(kills * 5)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for range kills {
		<-tick.C
		c.kill()
	}
	c.ended("ends")
	u.done().streamless().quiet(c.t)
	check()
}

// ends starts the Job of that many pods of which every third one ends with 42. What it returns waits for
// the end of the Job, checks that each code is as it was, and deletes the Job.
func (c *cluster) ends(indexes int) (check func()) {
	c.t.Helper()
	c.applyText(c.text("apps/ends", "@COUNT@", strconv.Itoa(indexes)))
	return func() { c.allEnded(indexes) }
}

func (c *cluster) allEnded(indexes int) {
	c.t.Helper()
	job := c.ended("ends")
	var third []string
	for i := 0; i < indexes; i += 3 {
		third = append(third, strconv.Itoa(i))
	}
	if got, want := *job.Status.FailedIndexes, strings.Join(third, ","); got != want {
		c.t.Errorf("indexes %s failed, want %s", got, want)
	}
	pods, err := c.pods("default", "job-name=ends")
	if err != nil {
		c.t.Fatal(err)
	}
	for i := range pods {
		c.code(&pods[i])
	}
	c.must("delete", "job", "ends")
}

// streamless leaves out streams: an exec ends with the berth, or the kubelet, that serves it.
func (r row) streamless() row {
	r.broken = 0
	return r
}

// kill kills berth on all nodes at once, and starts it again.
func (c *cluster) kill() {
	c.t.Helper()
	begin := time.Now()
	together(c.berths(), func(m *member) {
		m.Berth.Kill(syscall.SIGKILL)
		m.StartBerth()
	})
	c.t.Logf("berth was killed on each node, and each serves again after %s", time.Since(begin).Round(10*time.Millisecond))
}

// PROPERTIES 4: roll-outs succeed though berth is killed on all nodes every three seconds. No request
// is lost. What is started when berth is killed is made anew, and kubectl counts that.
func (c *cluster) rollOutKilled() {
	c.rest()
	const kills = 10
	u := c.watch(fmt.Sprintf("roll-outs, and %d kills of each berth", kills), c.members...)
	tick := time.NewTicker(3 * time.Second)
	defer tick.Stop()
	for version, done := 3, 0; done < kills; version++ {
		c.applyText(c.text("apps/web", "@REPLICAS@", strconv.Itoa(replicas), "@VERSION@", fmt.Sprint("v", version)))
		out := make(chan error, 1)
		go func() {
			_, err := c.kubectl("", "rollout", "status", "deployment/web", "--timeout=4m")
			out <- err
		}()
		for rolling := true; rolling; {
			select {
			case err := <-out:
				if rolling = false; err != nil {
					c.explain()
					c.t.Fatal(err)
				}
			case <-tick.C:
				c.kill()
				done++
			}
		}
	}
	c.rest()
	r := u.done().streamless()
	if r.restarts = 0; r.ended > 0 {
		c.t.Errorf("%d containers had ended", r.ended)
	}
	r.unharmed(c.t)
}

// code checks the code of a pod of the job ends.
func (c *cluster) code(p *corev1.Pod) {
	c.t.Helper()
	index, err := strconv.Atoi(p.Labels["batch.kubernetes.io/job-completion-index"])
	if err != nil {
		c.t.Fatal(err)
	}
	want := int32(0)
	if index%3 == 0 {
		want = 42
	}
	if len(p.Status.ContainerStatuses) != 1 {
		c.t.Errorf("%s has no status: %+v", p.Name, p.Status)
		return
	}
	if end := p.Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != want {
		c.t.Errorf("%s on %s: %+v, want code %d", p.Name, p.Spec.NodeName, p.Status, want)
	}
}

// A restart of berth, as an upgrade is, goes from node to node. A command that it ends is not taken
// for one that has succeeded.
func (c *cluster) restarted() {
	c.rest()
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	cmd := c.command(ctx, "exec", "client", "--", "sh", "-c", "echo begun; sleep 600")
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "begun\n" {
		c.t.Errorf("exec: %q, %v", line, err)
	}
	u := c.watch("a restart of berth node by node", c.members...)
	for _, m := range c.members {
		m.Berth.Kill(syscall.SIGTERM)
		m.StartBerth()
		u.enough(100)
		c.rest()
	}
	u.done().streamless().quiet(c.t)
	if err := cmd.Wait(); code(err) != 1 && code(err) != 128+int(syscall.SIGKILL) {
		c.t.Errorf("a command that a restart has cut off: %v", err)
	}
}

// A kubelet that is killed finds its pods again. It takes some of them for not Ready until it has
// probed them.
func (c *cluster) kubeletsKilled() {
	c.rest()
	u := c.watch("a kill of every kubelet", c.members...)
	c.each(func(m *member) {
		m.kubelet.Kill(syscall.SIGKILL)
		m.startKubelet()
	})
	u.enough(600)
	c.rest()
	r := u.done().streamless()
	r.unready = nil
	r.quiet(c.t)
}
