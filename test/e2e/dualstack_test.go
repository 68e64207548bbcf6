// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/client"
	"berth/test/node"
)

// A pod of a dual-stack network has an address of each family: its status reports both, the first
// of the plug-in first, and another pod reaches it by its IPv6 address.
func TestAPodHasAddressesOfBothFamilies(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	bridged(t, n, "dual", nil, n.Subnet, "fd00:be27::/64")
	pod, network := serving(t, n)
	if strings.Contains(network.GetIp(), ":") || len(network.GetAdditionalIps()) != 1 || !strings.HasPrefix(network.GetAdditionalIps()[0].GetIp(), "fd00:be27::") {
		t.Fatalf("pod %s: %v", pod, network)
	}
	isReached(t, n, network.GetAdditionalIps()[0].GetIp())
}

// A pod of a network with IPv6 alone reports its address, is reached by it, also by a client of a
// port-forward, and keeps it across a restart of berth.
func TestAPodHasAnIPv6AddressAlone(t *testing.T) {
	t.Parallel()
	node.Both(t, func(t *testing.T, n *node.Node) {
		bridged(t, n, "six", nil, "fd00:be28::/64")
		pod, network := serving(t, n)
		if !strings.HasPrefix(network.GetIp(), "fd00:be28::") || len(network.GetAdditionalIps()) != 0 {
			t.Fatalf("%v", network)
		}
		isReached(t, n, network.GetIp())
		n.Berth.Kill(syscall.SIGKILL)
		n.StartBerth()
		st, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
		if err != nil || st.GetStatus().GetNetwork().GetIp() != network.GetIp() {
			t.Errorf("after a restart: %v %v", st.GetStatus().GetNetwork(), err)
		}
		resp, err := n.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: pod})
		if err != nil {
			t.Fatal(err)
		}
		if got, refused := client.Talk(t, client.PortForward(t, resp.GetUrl()), "80", "1", ""); got != "hello\n" || refused != "" {
			t.Errorf("through a port-forward: %q %q", got, refused)
		}
	})
}

// bridged has the pods of a node use a bridge with these subnets, and then other plug-ins, and
// waits until they do.
func bridged(t *testing.T, n *node.Node, name string, others []string, subnets ...string) {
	t.Helper()
	type subnet struct {
		Subnet string `json:"subnet"`
	}
	var ranges [][]subnet
	for _, s := range subnets {
		ranges = append(ranges, []subnet{{s}})
	}
	list, err := json.Marshal(ranges)
	if err != nil {
		t.Fatal(err)
	}
	bridge := fmt.Sprintf(`{"type": "bridge", "bridge": %q, "isGateway": true, "enabledad": false,
		"ipam": {"type": "host-local", "dataDir": %q, "ranges": %s}}`, n.Bridge, n.Dir+"/lib/ipam", list)
	networked(t, n, name, append([]string{bridge}, others...)...)
}

// networked has the pods of a node use a network of these plug-ins, and waits until they do.
func networked(t *testing.T, n *node.Node, name string, plugins ...string) {
	t.Helper()
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [%s]}`, name, strings.Join(plugins, ","))
	if err := os.Mkdir(filepath.Join(n.Dir, "net.d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.Dir, "net.d", "10-test.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	n.Until("the configuration is in use", func() bool {
		st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
		return err == nil && strings.Contains(st.GetInfo()["cni"], fmt.Sprintf("%q", name))
	})
}

// serving runs a pod that says hello on port 80.
func serving(t *testing.T, n *node.Node) (pod string, network *runtimeapi.PodSandboxNetworkStatus) {
	t.Helper()
	cfg := n.PodConfig()
	pod = n.Pod(cfg)
	st, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	n.Run(pod, cfg, node.ContainerConfig("c", "sh", "-c", "while :; do echo hello | nc -l -p 80 || sleep 0.05; done"))
	return pod, st.GetStatus().GetNetwork()
}

// isReached expects that another pod reaches one that is serving.
func isReached(t *testing.T, n *node.Node, ip string) {
	t.Helper()
	cfg := n.PodConfig()
	id := n.Run(n.Pod(cfg), cfg, node.ContainerConfig("c", "sh", "-c",
		"until nc -w 2 "+ip+" 80 2>/dev/null | grep hello; do sleep 0.05; done"))
	node.ExpectExit(t, n.Ended(id), 0, "Completed")
	if got := n.Log(id); got != "hello\n" {
		t.Errorf("%q", got)
	}
}
