// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"maps"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PROPERTIES 61: an OCI runtime would set those of the network beside the plug-ins, unless it has a
// kernel of its own.
func TestTheSysctlsOfTheNetworkAreNotTheOCIRuntimesUnlessItHasAKernel(t *testing.T) {
	in := sandboxWith(nil)
	in.Config.Linux.Sysctls = map[string]string{
		"net/ipv4/conf/eth0.1/rp_filter": "2", // as the kubelet sends it: net.ipv4.conf.eth0/1.rp_filter
		"kernel/sem":                     "1 2 3 4",
		"fs.mqueue.msg_max":              "11",
	}
	others := map[string]string{"kernel.sem": "1 2 3 4", "fs.mqueue.msg_max": "11"}
	net := map[string]string{
		"net.ipv4.conf.eth0/1.rp_filter":      "2",
		"net.ipv4.ip_unprivileged_port_start": "0",
		"net.ipv4.ping_group_range":           "0 2147483647",
	}
	if got, err := NetSysctls(host(), in.Config); err != nil || !maps.Equal(got, net) {
		t.Errorf("%v, %v", got, err)
	}
	both := maps.Clone(others)
	maps.Copy(both, net)
	for guest, want := range map[bool]map[string]string{false: others, true: both} {
		in.Guest = guest
		s, _, err := ForSandbox(host(), in)
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(s.Linux.Sysctl, want) {
			t.Errorf("with a kernel of its own %v: %v, want %v", guest, s.Linux.Sysctl, want)
		}
	}
}

func TestASysctlWithTwoValuesIsRefused(t *testing.T) {
	in := sandboxWith(nil)
	in.Config.Linux.Sysctls = map[string]string{"net.ipv4.tcp_syncookies": "1", "net/ipv4/tcp_syncookies": "0"}
	_, _, err := ForSandbox(host(), in)
	refused(t, "two values", err)
}

// The kernel takes the groups that may ping for those of the process that sets them, which is
// berth.
func TestTheGroupsThatMayPingAreThoseOfThePodsUserNamespace(t *testing.T) {
	const last = 1 << 31 // the first group that the kernel does not take
	for _, tt := range []struct {
		first       uint32 // group of the host
		asked, want string
	}{
		{131072, "", "131072 132072"},
		{131072, "5 1000", "131077 132072"},
		{131072, "1 0", "131073 131072"}, // nobody
		{131072, "0 1001", "refused"},
		{131072, "many", "refused"},
		{131072, "1 2 3", "refused"},
		{last - 1001, "", "2147482647 2147483647"},
		{last - 1000, "", ""}, // they need a privilege, as without the setting
	} {
		in := inUserns(1000, 1001)
		in.Sandbox.Linux.SecurityContext.NamespaceOptions.UsernsOptions.Gids[0].HostId = tt.first
		if tt.asked != "" {
			in.Sandbox.Linux.Sysctls = map[string]string{pingGroups: tt.asked}
		}
		got, err := NetSysctls(host(), in.Sandbox)
		if tt.want == "refused" {
			refused(t, tt.asked, err)
		} else if err != nil || got[pingGroups] != tt.want {
			t.Errorf("%d, asked %q: %q, %v, want %q", tt.first, tt.asked, got[pingGroups], err, tt.want)
		}
	}
	if got, err := NetSysctls(host(), &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
		SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{Network: onNode}},
	}}); err != nil || len(got) > 0 {
		t.Errorf("on the host's network: %v, %v", got, err)
	}
}

// The name of a pod was 127.0.1.1 in the pod: a program that listens on its own name was reached by
// nobody else.
func TestTheHostnameStandsForThePodsAddresses(t *testing.T) {
	const lo = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	if got := string(Hosts("p", []string{"10.0.0.2", "fd00::2"})); got != lo+"10.0.0.2\tp\nfd00::2\tp\n" {
		t.Errorf("%q", got)
	}
	if got := string(Hosts("host", nil)); got != lo+"127.0.1.1\thost\n" {
		t.Errorf("on the host's network: %q", got)
	}
}
