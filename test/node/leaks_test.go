// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/sha512"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/command"
)

// The look for leaks sees each kind of thing that a running pod holds: what it does not see it
// could not miss.
func TestALivePodLooksLikeALeakOfEveryKind(t *testing.T) {
	for _, pause := range []string{"always", "auto"} {
		t.Run("pause="+pause, func(t *testing.T) {
			Modes(t, func(t *testing.T, external bool) {
				looksLikeALeak(t, Start(t, Options{External: external, Args: []string{"--set", "pod.pause=" + pause}}), pause == "always")
			})
		})
	}
}

func looksLikeALeak(t *testing.T, n *Node, paused bool) {
	t.Helper()
	cfg := n.PodConfig()
	cfg.PortMappings = []*runtimeapi.PortMapping{{HostPort: 30998, ContainerPort: 80}} // for rules of its own
	pod := n.Pod(cfg)
	id := n.Run(pod, cfg, ContainerConfig("c", "sleep", "1000"))
	ctx, conn, err := n.dialContainerd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	leases := leasesapi.NewLeasesClient(conn)
	if _, err := leases.Create(ctx, &leasesapi.CreateRequest{ID: "forgotten"}); err != nil {
		t.Fatal(err)
	}
	n.seen.mu.Lock()
	ids := map[string]bool{pod: n.seen.ids[pod]}
	n.seen.mu.Unlock()
	if !ids[pod] {
		t.Error("the pod's ID was not seen")
	}
	left := slices.Concat(n.leftProcesses(), n.leftMounts(), n.leftFiles(), n.leftCgroups(), n.leftLinks(), n.leftRules(ids), n.known(ctx), inContainerd(ctx, conn))
	state := n.Dir + "/run/containerd"
	records := n.Dir + "/run/runc/k8s.io/"
	if n.external != "" {
		state, records = n.Dir+"/c", n.Dir+"/runc/k8s.io/"
	}
	of := []string{n.Dir + "/run/pins/", state + "/io.containerd.sandbox.controller.v1.shim/k8s.io/" + pod}
	if paused {
		of = []string{"containerd's container " + pod}
	}
	for _, begin := range append(of,
		"process ", "mount "+n.Dir+"/run/sandboxes/"+pod+"/shm", "mount "+state, "mount "+n.Dir+"/netns/berth-", "link veth", "rule :CNI-DN-", "rule -A CNI-DN-",
		"cgroup /sys/fs/cgroup", n.Dir+"/netns/", n.Dir+"/run/io/", n.Dir+"/run/sandboxes/", n.Dir+"/lib/cni/results/", n.Dir+"/lib/ipam/berth/10.",
		state+"/io.containerd.runtime.v2.task/k8s.io/"+id, records+id, "pod "+pod, "container "+id,
		"containerd's container "+id, "containerd's task "+id, "containerd's sandbox "+id, "containerd's snapshot ", "containerd's lease forgotten",
	) {
		if !slices.ContainsFunc(left, func(l string) bool { return strings.HasPrefix(l, begin) }) {
			t.Errorf("nothing begins with %q", begin)
		}
	}
	if t.Failed() {
		t.Log(strings.Join(left, "\n"))
	}
	if _, err := leases.Delete(ctx, &leasesapi.DeleteRequest{ID: "forgotten"}); err != nil {
		t.Error(err)
	}
}

// What is left is taken away, so that a test that fails is nobody else's trouble.
func TestWhatIsLeftIsSwept(t *testing.T) {
	n := Start(t, Options{})
	id := strings.Repeat("0123456789abcdef", 4)
	if err := os.WriteFile(n.Dir+"/netns/berth-owner-"+id, nil, 0o600); err != nil { // so that it is seen
		t.Fatal(err)
	}
	n.Until("the pod is seen", func() bool { return n.seen.all()[id] })
	if err := os.Remove(n.Dir + "/netns/berth-owner-" + id); err != nil {
		t.Fatal(err)
	}
	chain := fmt.Sprintf("CNI-%x", sha512.Sum512([]byte("berth"+id)))[:28]
	for _, args := range [][]string{
		{"-N", chain}, {"-A", chain, "-d", n.Subnet, "-j", "ACCEPT"}, {"-A", "POSTROUTING", "-m", "comment", "--comment", "name: \"berth\" id: \"" + id + "\"", "-j", chain},
	} {
		if out, err := command.New(t, "iptables", append([]string{"-w", "-t", "nat"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("iptables %q: %v: %s", args, err, out)
		}
	}
	if left := n.leftRules(n.seen.all()); len(left) != 3 {
		t.Errorf("three rules and chains are left, seen are %q", left)
	}
	n.sweepRules()
	if left := n.leftRules(n.seen.all()); len(left) != 0 {
		t.Errorf("not swept: %q", left)
	}
}
