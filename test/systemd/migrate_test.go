// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/sys/mountinfo"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	"berth/test/command"
	"berth/test/node"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

const (
	ctrdSocket = "/run/containerd/containerd.sock"
	// broken is a setting that somebody has made, with which berth finds no containerd and is not ready.
	broken = "/etc/berth/conf.d/99-broken.toml"
)

// kubeadms is a node as kubeadm leaves it: containerd and the kubelet are services, and the kubelet runs a
// static pod.
type kubeadms struct {
	*host
	was map[string]string // its files, as they were written
}

// kubeadmsFiles are the files of the node. ROOT is the source, and the test puts in REGISTRY and IMAGE as
// well.
var kubeadmsFiles = map[string]string{
	"/etc/systemd/system/containerd.service": `[Unit]
Description=containerd container runtime
After=network.target local-fs.target dbus.service

[Service]
Type=notify
Environment=PATH=ROOT/build/libexec:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart=ROOT/build/libexec/containerd
Restart=always
RestartSec=5
Delegate=yes
KillMode=process
LimitNOFILE=infinity
TasksMax=infinity
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
`,
	"/etc/systemd/system/kubelet.service": `[Unit]
Description=kubelet: The Kubernetes Node Agent

[Service]
ExecStart=ROOT/build/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10

[Install]
WantedBy=multi-user.target
`,
	"/etc/systemd/system/kubelet.service.d/10-kubeadm.conf": `[Service]
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=ROOT/build/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`,
	"/var/lib/kubelet/kubeadm-flags.env": `KUBELET_KUBEADM_ARGS="--hostname-override=node"
`,
	"/var/lib/kubelet/config.yaml": `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: true}
  webhook: {enabled: false}
authorization: {mode: AlwaysAllow}
cgroupDriver: systemd
containerRuntimeEndpoint: unix:///var/run/containerd/containerd.sock
evictionHard: {memory.available: 1Mi}
failSwapOn: false
fileCheckFrequency: 1s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
makeIPTablesUtilChains: false
readOnlyPort: 10255
staticPodPath: /etc/kubernetes/manifests
`,
	"/etc/containerd/config.toml": `version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = 'REGISTRY/pause:1'
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['/usr/local/libexec/berth/cni']
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = true
`,
	"/etc/crictl.yaml": `runtime-endpoint: unix:///run/containerd/containerd.sock
image-endpoint: unix:///run/containerd/containerd.sock
timeout: 10
`,
	"/etc/cni/net.d/10-bridge.conflist": `{"cniVersion": "1.0.0", "name": "node", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]}}]}
`,
	"/etc/kubernetes/manifests/web.yaml": `apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: kube-system
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: web
    image: IMAGE
    command: [sh, -c, "trap 'exit 0' TERM; echo serves; while :; do sleep 0.1; done"]
`,
}

// startKubeadms makes the node, and waits until its pod runs.
func startKubeadms(t *testing.T) *kubeadms {
	t.Helper()
	if os.Getenv("BERTH_GUEST") == "" {
		t.Fatal("these tests change the host's units: run make test-systemd")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(root + "/build/libexec/pause")
	if err != nil {
		t.Fatal(err)
	}
	layer, err := testimage.Layer(testimage.File{Name: "pause", Mode: 0o755, Body: program})
	if err != nil {
		t.Fatal(err)
	}
	pause, err := testimage.Image(v1.Config{Entrypoint: []string{"/pause"}}, layer)
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := testimage.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	reg := testregistry.Start(t)
	reg.Push("pause:1", pause)
	image := reg.Push("busybox:1", busybox)
	k := &kubeadms{host: &host{t: t}, was: map[string]string{}}
	k.configure("")
	t.Cleanup(k.remove)
	for path, text := range kubeadmsFiles {
		text = strings.NewReplacer("ROOT", root, "REGISTRY", reg.Addr, "IMAGE", image).Replace(text)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		k.was[path] = text
	}
	k.systemctl("daemon-reload")
	k.systemctl("enable", "--now", "containerd", "kubelet")
	k.podRuns(ctrdSocket)
	return k
}

// remove removes the node.
func (k *kubeadms) remove() {
	if k.t.Failed() {
		k.t.Logf("the journal:\n%s", k.run("journalctl", "--no-pager", "-b", "-o", "short-monotonic", "-n", "300", "_PID=1", "+", "_SYSTEMD_UNIT=berth.service",
			"+", "_SYSTEMD_UNIT=containerd.service", "+", "_SYSTEMD_UNIT=kubelet.service"))
	}
	k.systemctl("disable", "--now", "kubelet")
	k.systemctl("start", "containerd")
	for _, socket := range []string{ctrdSocket, socket} {
		k.with(socket, func(ctx context.Context, c *client.Client) error {
			pods, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
			for _, p := range pods.GetItems() {
				_, rerr := c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.GetId()})
				err = errors.Join(err, rerr)
			}
			return err
		})
	}
	k.systemctl("disable", "--now", "containerd", "berth.service")
	for path := range kubeadmsFiles {
		_ = os.Remove(path)
	}
	_ = os.Remove(broken)
	_ = command.New(k.t, "ip", "link", "del", "cni0").Run()
	k.systemctl("daemon-reload")
}

// with calls a runtime that serves on a socket; not one that does not.
func (k *kubeadms) with(socket string, call func(ctx context.Context, c *client.Client) error) {
	k.t.Helper()
	if _, err := os.Stat(socket); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial(socket)
	if err != nil {
		k.t.Error(err)
		return
	}
	defer c.Close()
	if err := call(ctx, c); err != nil {
		k.t.Logf("%s: %v", socket, err)
	}
}

// podRuns waits until the static pod runs with the runtime of a socket, and the kubelet says so.
func (k *kubeadms) podRuns(socket string) {
	k.t.Helper()
	k.until("the pod runs with "+socket, func() (runs bool) {
		k.with(socket, func(ctx context.Context, c *client.Client) error {
			all, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
				State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
			}})
			runs = len(all.GetContainers()) == 1 && all.GetContainers()[0].GetMetadata().GetName() == "web"
			return err
		})
		return runs
	})
	k.until("the kubelet says that the pod is ready", func() bool {
		resp, err := http.Get("http://127.0.0.1:10255/pods") // it is on this host
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		var pods struct {
			Items []struct {
				Status struct {
					Conditions []struct{ Type, Status string }
				}
			}
		}
		if err := json.NewDecoder(resp.Body).Decode(&pods); err != nil || len(pods.Items) != 1 {
			return false
		}
		for _, c := range pods.Items[0].Status.Conditions {
			if c.Type == "Ready" {
				return c.Status == "True"
			}
		}
		return false
	})
}

// migrate runs berth migrate, and returns what it has printed.
func (k *kubeadms) migrate(succeeds bool, args ...string) string {
	k.t.Helper()
	began := time.Now()
	out, err := command.Within(k.t, 20*time.Minute, "/usr/local/bin/berth", append([]string{"migrate"}, args...)...).CombinedOutput()
	k.t.Logf("berth migrate %s took %s, %v:\n%s", strings.Join(args, " "), time.Since(began).Round(time.Second), err, out)
	if (err == nil) != succeeds {
		k.t.Fatalf("berth migrate %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// units are how the units are, as systemd says it.
func (k *kubeadms) units() string {
	k.t.Helper()
	var all []string
	for _, unit := range []string{"containerd", "kubelet", "berth"} {
		active, _ := command.New(k.t, "systemctl", "is-active", unit).Output() // it fails for one that is not
		enabled, _ := command.New(k.t, "systemctl", "is-enabled", unit).Output()
		all = append(all, fmt.Sprintf("%s: %s %s", unit, strings.TrimSpace(string(active)), strings.TrimSpace(string(enabled))))
	}
	return strings.Join(all, ", ")
}

// asBefore expects that the node is as it was before a migration, to the byte, and that its pod runs.
func (k *kubeadms) asBefore() {
	k.t.Helper()
	const want = "containerd: active enabled, kubelet: active enabled, berth: inactive disabled"
	if got := k.units(); got != want {
		k.t.Errorf("the units are %s, and not %s", got, want)
	}
	for path, was := range k.was {
		if b, err := os.ReadFile(path); err != nil || string(b) != was {
			k.t.Errorf("%s is not as it was: %v\n%s", path, err, b)
		}
	}
	for _, path := range []string{"/etc/berth/conf.d/50-migrated.toml", "/etc/systemd/system/berth.service.d"} {
		if _, err := os.Lstat(path); err == nil {
			k.t.Errorf("%s is left", path)
		}
	}
	if st, err := os.Lstat(ctrdSocket); err != nil || st.Mode()&os.ModeSocket == 0 {
		k.t.Errorf("%s is no socket: %v, %v", ctrdSocket, st, err)
	}
	k.podRuns(ctrdSocket)
	k.onlyOne()
}

// onlyOne expects that nothing runs but the one pod: one shim, one network namespace and one address.
func (k *kubeadms) onlyOne() {
	k.t.Helper()
	var shims, netns, addresses []string
	look := func() {
		shims, netns, addresses = nil, nil, nil
		seen := map[string]bool{}
		comms, _ := filepath.Glob("/proc/[0-9]*/comm")
		for _, path := range comms {
			if b, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(b), "containerd-shim") {
				shims = append(shims, path)
			}
		}
		mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("nsfs"))
		if err != nil {
			k.t.Fatal(err)
		}
		for _, m := range mounts {
			name := filepath.Base(m.Mountpoint)                                       // a mount can be listed below several directories
			if strings.HasPrefix(name, "cni-") || strings.HasPrefix(name, "berth-") { // the others keep no network
				if !seen[name] {
					netns = append(netns, name)
				}
				seen[name] = true
			}
		}
		addresses, _ = filepath.Glob("/var/lib/cni/networks/node/10.*")
	}
	defer func() {
		if len(shims) != 1 || len(netns) != 1 || len(addresses) != 1 {
			k.t.Errorf("shims %v, network namespaces %v, addresses %v", shims, netns, addresses)
		}
	}()
	k.until("only the pod is there", func() bool {
		look()
		return len(shims) == 1 && len(netns) == 1 && len(addresses) == 1
	})
}

// A node with services of containerd and the kubelet is moved to berth and back: the plan changes nothing,
// an apply that does not work is taken back, one that works has the pod run with berth, and an undo has it
// run with containerd again. The units are enabled and disabled as they were, and the files are the same to
// the byte.
func TestANodeIsMigratedAndBack(t *testing.T) {
	for _, place := range node.Pick(t, "place of containerd after the migration", "inside", "beside") {
		t.Run(place, func(t *testing.T) {
			var beside []string
			then := "containerd: inactive disabled, kubelet: active enabled, berth: active enabled"
			if place == "beside" {
				beside = []string{"--beside"}
				then = "containerd: active enabled, kubelet: active enabled, berth: active enabled"
			}
			k := startKubeadms(t)
			plan := k.migrate(true, append(beside, "--plan")...)
			for _, want := range []string{"kube-system/web", "systemd_cgroup", "/var/lib/kubelet/config.yaml", "50-migrated.toml"} {
				if !strings.Contains(plan, want) {
					t.Errorf("the plan does not say %s", want)
				}
			}
			if out := k.migrate(false, append(beside, "--apply")...); !strings.Contains(out, "--pods-may-end") {
				t.Error("it does not say why it refuses to end the pod")
			}
			k.asBefore()

			if err := os.MkdirAll(filepath.Dir(broken), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(broken, []byte("[containerd]\naddress = '/run/nobody.sock'\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if out := k.migrate(false, append(beside, "--apply", "--pods-may-end", "--within", "45s")...); !strings.Contains(out, "everything was taken back") || !strings.Contains(out, "is not ready within 45s") {
				t.Error("it does not say what has failed, and that all is as it was")
			}
			if err := os.Remove(broken); err != nil {
				t.Fatal(err)
			}
			k.asBefore()

			k.migrate(true, append(beside, "--apply", "--pods-may-end")...)
			k.podRuns(socket)
			if got := k.units(); got != then {
				t.Errorf("the units are %s, and not %s", got, then)
			}
			k.onlyOne()
			if out := k.migrate(true, "--apply"); !strings.Contains(out, "nothing is to be done") {
				t.Error("another apply does not say that nothing is to be done")
			}

			k.migrate(true, "--undo", "--pods-may-end")
			k.asBefore()
			if left, _ := filepath.Glob("/var/lib/berth/migrate/changed-*"); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}
