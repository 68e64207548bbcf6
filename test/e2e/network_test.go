// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// withPlugin adds a plug-in to those that the tests are built with, and returns their directory.
// The script does its work at ADD. The plug-in then answers with the result of the one before it in
// the list.
func withPlugin(t *testing.T, name, script string) string {
	t.Helper()
	dir := t.TempDir()
	built, err := filepath.Glob(node.Module(t) + "/build/cni/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range built {
		if err := os.Symlink(path, filepath.Join(dir, filepath.Base(path))); err != nil {
			t.Fatal(err)
		}
	}
	text := `#!/bin/sh -e
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
ADD)
  result=$(sed 's/.*"prevResult":\(.*\),"type":.*/\1/')
  ` + script + `
  echo "$result" ;;
esac
`
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// undoes is a plug-in that sets what pods ask for to something else, as plug-ins do that want IPv6
// or forwarding in each pod.
const undoes = `nsenter --net="$CNI_NETNS" sh -c '
    for i in all default eth0; do
      echo 0 >/proc/sys/net/ipv6/conf/$i/disable_ipv6
      echo 0 >/proc/sys/net/ipv4/conf/$i/rp_filter
    done'`

// PROPERTIES 61: a sysctl that a pod asks for is there once the pod is READY, although a plug-in of
// the network sets it to something else; also that of an interface that the network makes.
// PROPERTIES 4: and after a kill of berth.
func TestASysctlOfTheNetworkIsThereAfterThePlugins(t *testing.T) {
	t.Parallel()
	for _, mode := range node.Pick(t, "holder of a pod's namespaces", "auto", "always") {
		t.Run(mode, func(t *testing.T) {
			n := node.Start(t, node.Options{CNI: withPlugin(t, "undoes", undoes), Args: []string{"--set", "pod.pause=" + mode}})
			bridged(t, n, "undone", []string{`{"type": "undoes"}`}, n.Subnet)
			asked := map[string]string{
				"net.ipv6.conf.all.disable_ipv6":  "1",
				"net/ipv6/conf/eth0/disable_ipv6": "0",
				"net.ipv4.conf.eth0.rp_filter":    "2",
				"net.ipv4.conf.all.rp_filter":     "1",
				"net.ipv4.ip_local_port_range":    "4000 4999",
				"kernel.shm_rmid_forced":          "1",
			}
			cfg := n.PodConfig()
			cfg.Linux.Sysctls = asked
			pod := n.Pod(cfg)
			id := n.Run(pod, cfg, node.ContainerConfig("c", "sleep", "1000"))
			look := func() {
				t.Helper()
				got := map[string]string{}
				for name := range asked {
					got[name] = strings.ReplaceAll(says(t, n, id, "cat", "/proc/sys/"+strings.ReplaceAll(name, ".", "/")), "\t", " ")
					if got[name] != asked[name] {
						t.Errorf("%s is %q, and %q was asked for", name, got[name], asked[name])
					}
				}
			}
			look()
			n.Berth.Kill(syscall.SIGKILL)
			n.StartBerth()
			look()

			// One that cannot be set is refused by its name, and nothing of the pod is left.
			cfg = n.PodConfig()
			cfg.Linux.Sysctls = map[string]string{"net.ipv4.conf.eth7.rp_filter": "1"}
			_, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
			if err == nil || !strings.Contains(err.Error(), "net.ipv4.conf.eth7.rp_filter") {
				t.Errorf("a sysctl of an interface that is not there: %v", err)
			}
		})
	}
}

// A pod is not READY without an address: the kubelet would stop it and make another one for ever.
func TestAPodWithoutAnAddressIsRefusedByTheNameOfItsNetwork(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{CNI: withPlugin(t, "silent", `result='{"cniVersion":"1.0.0"}'`)})
	networked(t, n, "nowhere", `{"type": "silent"}`)
	_, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: n.PodConfig()})
	if err == nil || !strings.Contains(err.Error(), "nowhere") || !strings.Contains(err.Error(), "silent") {
		t.Errorf("%v", err)
	}
}

// The name of a pod stands for its address in the pod, as the kubelet has it, and not for a
// loopback address, on which others do not reach it.
func TestThePodsNameIsItsAddress(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	id := n.Run(pod, cfg, node.ContainerConfig("c", "sleep", "1000"))
	st, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	ip := st.GetStatus().GetNetwork().GetIp()
	var found []string
	for line := range strings.Lines(says(t, n, id, "cat", "/etc/hosts")) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == cfg.GetHostname() {
			found = append(found, fields[0])
		}
	}
	if len(found) != 1 || found[0] != ip {
		t.Errorf("the name stands for %q, and the address is %s", found, ip)
	}
}
