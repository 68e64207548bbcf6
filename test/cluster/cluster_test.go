// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"berth/test/node"
)

// replicas is how many pods of web there are on three nodes.
const replicas = 6

// One node is a cluster.
func TestOneNode(t *testing.T) {
	c := start(t, options{nodes: 1})
	c.serves(2)
}

// kubeadm makes a cluster of two nodes, of which the second joins with a token.
func TestKubeadm(t *testing.T) {
	c := startKubeadm(t, 2)
	c.serves(3)
	c.streams()
	u := c.watch("a kill of berth on each node of kubeadm", c.members...)
	c.kill()
	u.enough(200)
	c.until("the nodes are Ready", c.nodesReady)
	u.done().streamless().quiet(t)
}

// What people do with a cluster, and what is done to it, one after the other: with kubelets that list
// pods, and with kubelets that read berth's events and statistics.
func TestThreeNodes(t *testing.T) {
	for _, source := range node.Pick(t, "source of what the kubelets know", lists, events) {
		t.Run(source, func(t *testing.T) {
			c := start(t, options{nodes: 3, evented: source == events})
			c.serves(replicas)
			t.Cleanup(func() { c.print(source) })
			c.story()
		})
	}
}

// Where a kubelet knows from what runs.
const (
	lists  = "lists"
	events = "events"
)

func (c *cluster) story() {
	c.steps(
		step{"NothingHappens", c.nothingHappens},
		step{"ADeploymentIsRolledOut", c.rollOut},
		step{"ServicesAndNamesWork", c.names},
		step{"ADaemonSetIsOnEachNode", c.daemonSet},
		step{"AStatefulSetKeepsItsData", c.statefulSet},
		step{"AJobActsOnExitCodes", c.jobs},
		step{"StreamsWork", c.streams},
		step{"AContainerIsDebugged", c.debugged},
		step{"APodIsResizedInPlace", c.resized},
		step{"ANodeIsDrained", c.drain},
		step{"BerthIsKilledEverywhere", c.killed},
		step{"ADeploymentIsRolledOutWhileBerthIsKilled", c.rollOutKilled},
		step{"BerthIsRestartedNodeByNode", c.restarted},
		step{"BerthIsReplacedNodeByNode", c.upgraded},
		step{"KubeletsAreKilled", c.kubeletsKilled},
		step{"ANodeIsCutOff", c.cutOff},
	)
}

// step is something that is done to a cluster, as a test of its own.
type step struct {
	name string
	do   func()
}

// steps does one step after the other.
func (c *cluster) steps(steps ...step) {
	for _, s := range steps {
		c.outer.Run(s.name, func(t *testing.T) {
			c.t = t
			defer func() { c.t = c.outer }()
			s.do()
		})
	}
}

// A user notices nothing while nothing happens: what he notices later is because of what was done.
func (c *cluster) nothingHappens() {
	u := c.watch("nothing", c.members...)
	u.enough(300)
	u.done().quiet(c.t)
}

// quiet fails the test if the user noticed anything.
func (r row) quiet(t *testing.T) {
	t.Helper()
	r.unharmed(t)
	if r.replaced > 0 {
		t.Errorf("%d pods were replaced", r.replaced)
	}
}

// unharmed fails the test if the user noticed more than that pods were replaced.
func (r row) unharmed(t *testing.T) {
	t.Helper()
	if r.failed > 0 || r.refused > 0 || r.broken > 0 || r.restarts > 0 || len(r.unready) > 0 || len(r.away) > 0 {
		t.Errorf("the user noticed %+v", r)
	}
}

// Another version takes the place of each pod, and no request is lost.
func (c *cluster) rollOut() {
	u := c.watch("a roll-out", c.members...)
	c.applyText(c.text("apps/web", "@REPLICAS@", fmt.Sprint(replicas), "@VERSION@", "v2"))
	c.must("rollout", "status", "deployment/web", "--timeout=5m")
	c.until("every pod is of the new version", func() error {
		pods, err := c.pods("default", "app=web")
		if err == nil && len(pods) != replicas {
			err = fmt.Errorf("%d pods", len(pods))
		}
		return err
	})
	u.done().unharmed(c.t)
	for _, m := range c.members {
		if text, err := u.call(c.t.Context(), m); err != nil || !strings.HasPrefix(text, "v2 ") {
			c.t.Errorf("through %s: %q, %v", m.name, text, err)
		}
	}
}

// A pod finds services and pods of other nodes by their names and addresses.
func (c *cluster) names() {
	for _, name := range []string{"kubernetes.default.svc.cluster.local", "web.default.svc.cluster.local", "kube-dns.kube-system.svc.cluster.local"} {
		out := c.must("exec", "client", "--", "nslookup", name)
		if !strings.Contains(out, "Address: 172.30.") && !strings.Contains(out, "Address 1: 172.30.") {
			c.t.Errorf("%s: %s", name, out)
		}
	}
	pods, err := c.pods("default", "app=web")
	if err != nil {
		c.t.Fatal(err)
	}
	silent := map[string]bool{}
	for i := range pods {
		silent[pods[i].Name] = true
	}
	c.until("each pod has answered for the Service", func() error {
		fields := strings.Fields(c.must("exec", "client", "--", "wget", "-q", "-O", "-", "http://web/"))
		if len(fields) == 3 {
			delete(silent, fields[1])
		}
		if len(silent) > 0 {
			return fmt.Errorf("not those: %v", silent)
		}
		return nil
	})
	for i := range pods {
		p := &pods[i]
		if out := c.must("exec", "client", "--", "wget", "-q", "-O", "-", "http://"+p.Status.PodIP+":8080/"); !strings.Contains(out, p.Name) {
			c.t.Errorf("%s at %s answers %q", p.Name, p.Status.PodIP, out)
		}
	}
}

func (c *cluster) daemonSet() {
	c.apply("apps/daemon")
	c.until("a pod of the DaemonSet is Ready on each node", func() error {
		pods, err := c.pods("default", "app=agent")
		if err != nil {
			return err
		}
		var on []string
		for i := range pods {
			if podReady(&pods[i]) {
				on = append(on, pods[i].Spec.NodeName)
			}
		}
		if slices.Sort(on); len(slices.Compact(on)) != len(c.members) {
			return fmt.Errorf("on %v", on)
		}
		return nil
	})
}

// A pod that takes the place of another one has its name and its data.
func (c *cluster) statefulSet() {
	c.apply("apps/stateful")
	whole := func() error {
		var set appsv1.StatefulSet
		err := c.get("/apis/apps/v1/namespaces/default/statefulsets/db", &set)
		if err == nil && (set.Status.ReadyReplicas != 2 || set.Status.AvailableReplicas != 2) {
			err = fmt.Errorf("%+v", set.Status)
		}
		return err
	}
	c.until("the StatefulSet is whole", whole)
	c.must("delete", "pod", "db-0")
	c.until("the StatefulSet is whole again", whole)
	c.until("the data of the first pod is there", func() error {
		out, err := c.kubectl("", "exec", "client", "--", "wget", "-q", "-O", "-", "http://db-0.db:8080/starts")
		if err == nil && out != "db-0\ndb-0\n" {
			err = fmt.Errorf("it has %q", out)
		}
		return err
	})
}

// PROPERTIES 5: a Job acts on the codes that its containers end with.
func (c *cluster) jobs() {
	c.apply("apps/jobs")
	job := c.ended("hopeless")
	if last := job.Status.Conditions[len(job.Status.Conditions)-1]; last.Type != batchv1.JobFailed || last.Reason != batchv1.JobReasonPodFailurePolicy || job.Status.Failed != 1 {
		c.t.Errorf("a job whose container ended with 42: %+v", job.Status)
	}
	if job = c.ended("patient"); job.Status.Succeeded != 1 || job.Status.Failed != 0 {
		c.t.Errorf("a job whose container ended with 7 and then with 0: %+v", job.Status)
	}
}

// ended waits for the end of a job.
func (c *cluster) ended(name string) *batchv1.Job {
	c.t.Helper()
	var job *batchv1.Job
	c.until("the job "+name+" has ended", func() error {
		job = &batchv1.Job{}
		err := c.get("/apis/batch/v1/namespaces/default/jobs/"+name, job)
		if err == nil && !over(job) {
			err = fmt.Errorf("%+v", job.Status)
		}
		return err
	})
	return job
}

func over(job *batchv1.Job) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobFailed || c.Type == batchv1.JobComplete) && c.Status == corev1.ConditionTrue
	})
}

// exec, logs -f, port-forward and cp, as kubectl does them.
func (c *cluster) streams() {
	if out, err := c.kubectl("", "exec", "client", "--", "sh", "-c", "echo out; exit 7"); out != "out\n" || code(err) != 7 {
		c.t.Errorf("exec: %q, %v", out, err)
	}
	if out, err := c.kubectl("in\n", "exec", "-i", "client", "--", "cat"); out != "in\n" || err != nil {
		c.t.Errorf("exec -i: %q, %v", out, err)
	}
	c.talk()
	c.forward()
	sent := make([]byte, 1<<20)
	_, _ = rand.Read(sent)
	from, to := c.dir+"/sent", c.dir+"/received"
	if err := os.WriteFile(from, sent, 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.must("cp", from, "default/client:/tmp/file")
	c.must("cp", "default/client:/tmp/file", to)
	if received, err := os.ReadFile(to); err != nil || !bytes.Equal(sent, received) {
		c.t.Errorf("cp: %d bytes came back of %d: %v", len(received), len(sent), err)
	}
}

// talk follows a log to its end.
func (c *cluster) talk() {
	c.must("run", "talker", "--image="+node.Busybox, "--image-pull-policy=IfNotPresent", "--restart=Never", "--command", "--",
		"sh", "-c", "for i in $(seq 200); do echo $i; [ $((i % 50)) = 0 ] && sleep 1; done; exit 0")
	c.until("the log begins", func() error {
		pods, err := c.pods("default", "run=talker")
		if err == nil && (len(pods) != 1 || pods[0].Status.Phase == corev1.PodPending) {
			err = fmt.Errorf("%d pods, which are not running", len(pods))
		}
		return err
	})
	var want strings.Builder
	for i := range 200 {
		fmt.Fprintln(&want, i+1)
	}
	if out := c.must("logs", "-f", "talker"); out != want.String() {
		c.t.Errorf("logs -f: %q", out)
	}
	c.must("delete", "pod", "talker")
}
