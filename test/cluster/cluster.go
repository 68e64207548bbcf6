// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/test/node"
)

const (
	// services is the network of the addresses of services, and is on no link. Its first address is
	// the API server's, and dns the DNS server's.
	services, apiService, dns = "172.30.0.0/16", "172.30.0.1", "172.30.0.10"
	// patience is how long a cluster may take for anything on a machine that is busy.
	patience = 5 * time.Minute
)

// cluster is a control plane and nodes, which are network namespaces of this host. The first node
// runs the control plane.
type cluster struct {
	t       *testing.T // that runs now
	outer   *testing.T // of the whole cluster
	dir     string
	module  string
	evented bool
	lan     *node.LAN
	ca      *authority
	members []*member
	admin   string       // the administrator's kubeconfig
	client  *http.Client // his
	table   []row        // the observations of a user
}

// options describe the nodes of a cluster.
type options struct {
	nodes   int
	foreign int // so many of them, the last ones, run containerd's CRI plug-in instead of berth
	// The kubelets of berth's nodes read berth's events and statistics, and do without lists and
	// cAdvisor where they can.
	evented bool
}

// start makes a cluster, and waits until it is whole: the nodes are Ready, and the network and the
// DNS server of the cluster work.
func start(t *testing.T, o options) *cluster {
	t.Helper()
	c := newCluster(t, o.nodes)
	c.evented = o.evented
	c.ca = newAuthority(t, c.dir+"/pki")
	c.admin = c.ca.dir + "/admin.conf"
	control := c.lan.Hosts[0].Address
	c.ca.issue("apiserver", "kube-apiserver", nil, control, apiService, "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	c.ca.issue("etcd", "etcd", nil, "127.0.0.1")
	for name, groups := range map[string][]string{
		"kube-apiserver-kubelet-client":  {"system:masters"},
		"front-proxy-client":             nil,
		"admin":                          {"system:masters"},
		"system:kube-controller-manager": nil,
		"system:kube-scheduler":          nil,
	} {
		file := strings.TrimPrefix(name, "system:")
		c.ca.issue(file, name, groups)
		c.ca.kubeconfig(file, control)
	}
	c.connect(c.ca.client("admin"))
	for i, h := range c.lan.Hosts {
		c.addNode(i, h, i >= o.nodes-o.foreign).enroll()
	}
	c.route()
	c.importImages()
	for _, m := range c.members {
		if m.foreign {
			m.StartPlugin()
		}
		m.startKubelet()
	}
	c.until("the API server is ready", func() error {
		_, err := c.request("/readyz")
		return err
	})
	c.apply("system/kube-proxy", "system/coredns")
	c.joined()
	return c
}

// newCluster makes the parts that a cluster needs before it has nodes.
func newCluster(t *testing.T, nodes int) *cluster {
	t.Helper()
	c := &cluster{t: t, outer: t, dir: node.TempDir(t), module: node.Module(t)}
	t.Cleanup(func() {
		if err := os.RemoveAll(c.dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.MkdirAll(c.dir+"/volumes", 0o755); err != nil {
		t.Fatal(err)
	}
	c.lan = node.NewLAN(t, nodes)
	return c
}

// connect makes the client of the administrator.
func (c *cluster) connect(tls *tls.Config) {
	c.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: tls, MaxIdleConnsPerHost: 8}}
}

// joined waits until all nodes have joined, and run the pods of every cluster.
func (c *cluster) joined() {
	c.t.Helper()
	c.until("the nodes are Ready", c.nodesReady)
	c.until("the pods of the system are Ready", func() error { return c.podsReady("kube-system", 4+len(c.members)+2) })
}

// request gets an object of the API server by its path.
func (c *cluster) request(path string) ([]byte, error) {
	resp, err := c.client.Get("https://" + c.lan.Hosts[0].Address + ":6443" + path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.300s", path, resp.Status, b)
	}
	return b, err
}

// get gets an object or a list.
func (c *cluster) get(path string, object any) error {
	b, err := c.request(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, object)
}

// pods are the pods of a namespace, or of all for "", with labels that match a selector.
func (c *cluster) pods(namespace, selector string) ([]corev1.Pod, error) {
	path := "/api/v1/pods"
	if namespace != "" {
		path = "/api/v1/namespaces/" + namespace + "/pods"
	}
	var list corev1.PodList
	err := c.get(path+"?labelSelector="+selector, &list)
	return list.Items, err
}

// until waits until something is so. It fails the test with the last error after [patience].
func (c *cluster) until(what string, is func() error) {
	c.t.Helper()
	begin := time.Now()
	var err error
	for time.Since(begin) < patience {
		if err = is(); err == nil {
			c.t.Logf("%s after %s", what, time.Since(begin).Round(100*time.Millisecond))
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
	c.explain()
	c.t.Fatalf("not so after %s: %s: %v", patience, what, err)
}

// explain logs the state of the cluster and the nodes.
func (c *cluster) explain() {
	for _, args := range [][]string{{"get", "nodes,pods", "-A", "-o", "wide"}, {"get", "events", "-A", "--sort-by=.lastTimestamp"}} {
		out, err := c.kubectl("", args...)
		c.t.Logf("kubectl %v: %v\n%s", args, err, out)
	}
	for _, m := range c.members {
		m.explain()
	}
}

func (c *cluster) nodesReady() error {
	var list corev1.NodeList
	if err := c.get("/api/v1/nodes", &list); err != nil {
		return err
	}
	if len(list.Items) != len(c.members) {
		return fmt.Errorf("%d nodes of %d have joined", len(list.Items), len(c.members))
	}
	for i := range list.Items {
		if n := &list.Items[i]; !nodeReady(n) {
			return fmt.Errorf("node %s is not Ready: %+v", n.Name, n.Status.Conditions)
		}
	}
	return nil
}

func nodeReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// podsReady returns an error that names the pods of a namespace that are not Ready, or if there are
// too few. Those that are being deleted do not count, nor do those that have ended.
func (c *cluster) podsReady(namespace string, atLeast int) error {
	pods, err := c.pods(namespace, "")
	if err != nil {
		return err
	}
	ready := 0
	for i := range pods {
		p := &pods[i]
		switch {
		case p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		case !podReady(p):
			return fmt.Errorf("pod %s on %s is not Ready: %s", p.Name, p.Spec.NodeName, p.Status.Phase)
		default:
			ready++
		}
	}
	if ready < atLeast {
		return fmt.Errorf("%d pods of %d are Ready", ready, atLeast)
	}
	return nil
}

// text is a manifest of testdata with its placeholders filled in.
func (c *cluster) text(name string, more ...string) string {
	c.t.Helper()
	b, err := os.ReadFile("testdata/" + name + ".yaml")
	if err != nil {
		c.t.Fatal(err)
	}
	control := c.lan.Hosts[0].Address
	return strings.NewReplacer(append(more,
		"@DIR@", c.dir, "@CONTROL@", control, "@SERVICES@", services, "@DNS@", dns, "@BUSYBOX@", node.Busybox,
		"@PODS@", strings.Join(strings.Split(control, ".")[:2], ".")+".0.0/16", "@IMAGES@", repository, "@TAG@", version(),
	)...).Replace(string(b))
}

// apply gives manifests of testdata to the cluster.
func (c *cluster) apply(names ...string) {
	c.t.Helper()
	for _, name := range names {
		c.applyText(c.text(name))
	}
}

func (c *cluster) applyText(text string) {
	c.t.Helper()
	if out, err := c.kubectl(text, "apply", "-f", "-"); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
}

// command is kubectl, as the administrator calls it.
func (c *cluster) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.module+"/build/bin/kubectl", args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.admin, "HOME="+c.dir)
	return cmd
}

// kubectl runs kubectl with a standard input, and returns its output. If kubectl refuses, the error
// is an *exec.ExitError.
func (c *cluster) kubectl(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := c.command(ctx, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, diagnostics bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diagnostics
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, diagnostics.String())
	}
	return out.String(), err
}

// must is kubectl where it has to succeed.
func (c *cluster) must(args ...string) string {
	c.t.Helper()
	out, err := c.kubectl("", args...)
	if err != nil {
		c.explain()
		c.t.Fatal(err)
	}
	return out
}

// code is the exit code of a command that has ended.
func code(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

// each does something on every node at once.
func (c *cluster) each(do func(m *member)) { together(c.members, do) }

// berths are the nodes of berth.
func (c *cluster) berths() []*member {
	return slices.DeleteFunc(slices.Clone(c.members), func(m *member) bool { return m.foreign })
}

// together does something on nodes at once.
func together(members []*member, do func(m *member)) {
	var wg sync.WaitGroup
	for _, m := range members {
		wg.Go(func() { do(m) })
	}
	wg.Wait()
}
