// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/command"
	"berth/test/node"
)

// kubelet is a kubelet on a node of berth's, with a directory of manifests.
type kubelet struct {
	*node.Node
	t       testing.TB
	evented bool // it reads berth's events
	asks    bool // its cAdvisor asks berth's containerd: from 1.37 on, only that at the usual path
	dir     string
	group   string // the cgroup below which it makes the pods' cgroups
	program string
	port    int
	process *node.Process
	client  *http.Client
}

// start starts a node and a kubelet. If evented is set, the kubelet reads berth's events and
// statistics, and does without lists and cAdvisor where it can. The settings are lines of YAML for
// the kubelet's configuration, besides those of every test.
func start(t *testing.T, o node.Options, evented bool, settings ...string) *kubelet {
	t.Helper()
	if o.Dir == "" {
		o.Dir = node.TempDir(t)
	}
	o.Args = append(o.Args, "--set", "containerd.link="+o.Dir+"/link")
	n := node.Start(t, o)
	k := &kubelet{
		Node:    n,
		t:       t,
		evented: evented,
		dir:     n.Dir + "/k",
		group:   n.Cgroup + "-kubelet",
		program: cmp.Or(os.Getenv("BERTH_KUBELET"), n.Module+"/build/bin/kubelet"),
		port:    freePort(t),
		client: &http.Client{
			Timeout:   30 * time.Second,
			Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
		},
	}
	if _, err := os.Stat(k.program); err != nil {
		t.Fatalf("%v: run `make test-kubelet`", err)
	}
	help, err := command.New(t, k.program, "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	k.asks = bytes.Contains(help, []byte(" --containerd "))
	t.Cleanup(k.stop)
	for _, d := range []string{"/manifests", "/podlogs", "/root"} {
		if err := os.MkdirAll(k.dir+d, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range node.Groups(k.group) {
		if err := os.MkdirAll(g, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := os.ReadFile("testdata/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(
		"DIR", k.dir, "GROUP", k.group, "PORT", strconv.Itoa(k.port), "SOCKET", n.Dir+"/berth.sock", "EVENTED", strconv.FormatBool(evented),
	).Replace(string(cfg)) + strings.Join(settings, "\n")
	if err := os.WriteFile(k.dir+"/config.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	k.run()
	return k
}

// run starts the kubelet's process and waits until it answers.
func (k *kubelet) run() {
	k.t.Helper()
	args := []string{
		"--config", k.dir + "/config.yaml", "--root-dir", k.dir + "/root", "--cert-dir", k.dir + "/certs", "--hostname-override", "node", "--v", "2",
	}
	if k.asks {
		args = append(args, "--containerd", k.Dir+"/link")
	}
	k.process = k.Spawn(k.program, args...)
	k.Until("the kubelet answers", func() bool {
		_, err := k.get("/healthz")
		return err == nil
	})
}

// stop takes all pods away, and the kubelet after them.
func (k *kubelet) stop() {
	if k.process == nil {
		return
	}
	if err := os.RemoveAll(k.dir + "/manifests"); err != nil {
		k.t.Error(err)
	}
	if err := os.Mkdir(k.dir+"/manifests", 0o750); err != nil {
		k.t.Error(err)
	}
	if !k.process.Over() {
		k.eventually(k.idle) // the node removes the remains, and reports those that it cannot remove
	}
	k.process.Kill(syscall.SIGTERM)
	if k.t.Failed() {
		k.t.Logf("the kubelet's log:\n%s", k.process.Output())
	}
	for _, m := range k.mounts() {
		if err := syscall.Unmount(m, syscall.MNT_DETACH); err != nil {
			k.t.Error(err)
		}
	}
	for _, g := range node.Groups(k.group) {
		node.RemoveGroup(g)
	}
}

// eventually waits up to three minutes until ok returns true, and polls less often than Until,
// because it asks the kubelet.
func (k *kubelet) eventually(ok func() bool) bool {
	for range 1800 {
		if ok() {
			return true
		}
		time.Sleep(100 * time.Millisecond)
	}
	return false
}

// idle reports whether berth runs no pod. The kubelet removes the remains of deleted pods once a
// minute; the node removes them at the end of a test.
func (k *kubelet) idle() bool {
	ready := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
	pods, err := k.ListPodSandbox(context.Background(), &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{State: ready}})
	if err != nil || len(pods.GetItems()) > 0 {
		return false
	}
	running := &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}
	containers, err := k.ListContainers(context.Background(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{State: running}})
	return err == nil && len(containers.GetContainers()) == 0
}

// mounts are the kubelet's mounts, the last one first: volumes, and its own directory.
func (k *kubelet) mounts() []string {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(k.dir))
	if err != nil {
		k.t.Error(err)
	}
	var paths []string
	for _, m := range slices.Backward(infos) {
		paths = append(paths, m.Mountpoint)
	}
	return paths
}

// add gives the kubelet the manifest of a pod, under a name that replaces that in the manifest.
func (k *kubelet) add(manifest, name string) {
	k.t.Helper()
	k.change(manifest, name)
}

// change is add for a pod that is there already: each old text in the manifest is replaced by the
// new one that follows it.
func (k *kubelet) change(manifest, name string, texts ...string) {
	k.t.Helper()
	b, err := os.ReadFile("testdata/pods/" + manifest + ".yaml")
	if err != nil {
		k.t.Fatal(err)
	}
	texts = append(texts, "IMAGE", node.Busybox, "DIR", k.dir, "\n  name: "+manifest+"\n", "\n  name: "+name+"\n")
	text := strings.NewReplacer(texts...).Replace(string(b))
	// The kubelet watches the directory: it must not read half a manifest.
	temp := k.dir + "/" + name + ".new"
	if err := os.WriteFile(temp, []byte(text), 0o600); err != nil {
		k.t.Fatal(err)
	}
	if err := os.Rename(temp, k.manifest(name)); err != nil {
		k.t.Fatal(err)
	}
}

// remove takes the manifest of a pod away.
func (k *kubelet) remove(name string) {
	k.t.Helper()
	if err := os.Remove(k.manifest(name)); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kubelet) manifest(name string) string { return k.dir + "/manifests/" + name + ".yaml" }

func (k *kubelet) request(method, path string) (string, error) {
	req, err := http.NewRequest(method, fmt.Sprintf("https://127.0.0.1:%d%s", k.port, path), http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := k.client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s: %s", path, resp.Status, b)
	}
	return string(b), nil
}

func (k *kubelet) get(path string) (string, error) { return k.request(http.MethodGet, path) }

// pod is the kubelet's report of a pod.
type pod struct {
	Metadata struct{ Name string }
	Status   struct {
		Phase                 string
		Conditions            []struct{ Type, Status string }
		InitContainerStatuses []container
		ContainerStatuses     []container
	}
}

type container struct {
	Name         string
	Ready        bool
	RestartCount int
	ContainerID  string
	State        state
	LastState    state
}

type state struct {
	Running    *struct{}
	Waiting    *struct{ Reason, Message string }
	Terminated *struct {
		ExitCode int
		Reason   string
		Message  string
	}
}

// ready reports whether every container is.
func (p pod) ready() bool {
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

// only is the pod's first container that is not an init container.
func (p pod) only() container {
	if len(p.Status.ContainerStatuses) == 0 {
		return container{}
	}
	return p.Status.ContainerStatuses[0]
}

// pods are the pods that the kubelet knows, by name without the suffix of the node.
func (k *kubelet) pods() (map[string]pod, error) {
	text, err := k.get("/pods")
	if err != nil {
		return nil, err
	}
	var list struct{ Items []pod }
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, err
	}
	found := map[string]pod{}
	for _, p := range list.Items {
		found[strings.TrimSuffix(p.Metadata.Name, "-node")] = p
	}
	return found, nil
}

// until waits until a pod is as it should be, and returns it.
func (k *kubelet) until(name, what string, ok func(p pod) bool) pod {
	k.t.Helper()
	var last pod
	if !k.eventually(func() bool {
		all, err := k.pods()
		if err != nil {
			return false
		}
		last = all[name]
		return ok(last)
	}) {
		k.t.Fatalf("%s is still not %s: %+v", name, what, last)
	}
	return last
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port // of a TCP listener
}
