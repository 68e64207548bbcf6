// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// A pod of a dual-stack network has an address of each family: its status reports both, the first
// of the plug-in first, and another pod reaches it by its IPv6 address.
func TestAPodHasAddressesOfBothFamilies(t *testing.T) {
	n := node.Start(t, node.Options{})
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "dual", "plugins": [{
		"type": "bridge", "bridge": %q, "isGateway": true, "enabledad": false,
		"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q}], [{"subnet": "fd00:be27::/64"}]]}}]}`,
		n.Bridge, n.Dir+"/lib/ipam", n.Subnet)
	if err := os.Mkdir(filepath.Join(n.Dir, "net.d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.Dir, "net.d", "10-dual.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	n.Until("the configuration is in use", func() bool {
		st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
		return err == nil && strings.Contains(st.GetInfo()["cni"], `"dual"`)
	})
	serves := n.PodConfig()
	pod := n.Pod(serves)
	st, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	network := st.GetStatus().GetNetwork()
	if strings.Contains(network.GetIp(), ":") || len(network.GetAdditionalIps()) != 1 || !strings.HasPrefix(network.GetAdditionalIps()[0].GetIp(), "fd00:be27::") {
		t.Fatalf("%v", network)
	}
	n.Run(pod, serves, node.ContainerConfig("c", "sh", "-c", "while :; do echo hello | nc -l -p 80 || sleep 0.05; done"))
	asks := n.PodConfig()
	id := n.Run(n.Pod(asks), asks, node.ContainerConfig("c", "sh", "-c",
		"until nc -w 2 "+network.GetAdditionalIps()[0].GetIp()+" 80 2>/dev/null | grep hello; do sleep 0.05; done"))
	node.ExpectExit(t, n.Ended(id), 0, "Completed")
	if got := n.Log(id); got != "hello\n" {
		t.Errorf("%q", got)
	}
}
