// SPDX-License-Identifier: Apache-2.0

package network

import (
	"maps"
	"os/exec"
	"strings"
	"testing"

	"berth/internal/host/namespace"
)

// PROPERTIES 61: SetSysctls sets all that a pod asks for, in an order in which none undoes another,
// or names one that it does not set.
func TestSysctlsOfTheNetworkAreSetOrNamed(t *testing.T) {
	p := Pod{ID: "p1", NetNS: pinned(t)}
	in := func(command string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "nsenter", "--net="+p.NetNS, "sh", "-c", command).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		return strings.Join(strings.Fields(string(out)), " ")
	}
	in("ip link add eth0 type veth peer name eth0.1")
	got := func(names map[string]string) map[string]string {
		is := map[string]string{}
		for name := range names {
			is[name] = in("cat /proc/sys/" + namespace.SysctlPath(name))
		}
		return is
	}
	set := map[string]string{
		"net.ipv4.ip_forward":               "1", // sets those of all interfaces
		"net.ipv4.conf.eth0.forwarding":     "0",
		"net.ipv4.conf.eth0/1.rp_filter":    "2",
		"net/ipv4/conf/eth0.1/log_martians": "1",
		"net.ipv6.conf.all.disable_ipv6":    "1",
		"net.ipv6.conf.default.autoconf":    "0",
		"net.ipv6.conf.eth0.disable_ipv6":   "0",
		"net.ipv4.ip_local_port_range":      "4000 4999",
		"net.ipv4.tcp_fastopen":             "3",
		"net.ipv4.ip_local_reserved_ports":  "8080,9000-9002",
		"net.ipv4.ping_group_range":         "1 0",
	}
	if err := new(Network).SetSysctls(p, Result{}, set); err != nil {
		t.Fatal(err)
	}
	if is := got(set); !maps.Equal(is, set) {
		t.Errorf("%v, want %v", is, set)
	}
	// What the kernel writes in another way is set all the same, and what cannot be read.
	others := map[string]string{
		"net.ipv4.tcp_syncookies":             "0x1",
		"net.ipv6.conf.eth0.stable_secret":    "2001:db8::1",
		"net.ipv4.route.flush":                "1",
		"net.ipv4.neigh.eth0.retrans_time_ms": "1001",
	}
	if err := new(Network).SetSysctls(p, Result{}, others); err != nil {
		t.Error(err)
	}
	for name, tt := range map[string]struct{ value, other string }{
		"net.ipv4.conf.eth7.rp_filter":        {value: "1"},     // there is no such interface
		"net.ipv4.conf.eth0.1.rp_filter":      {value: "1"},     // nor is there one of this name
		"net.ipv4.tcp_syncookies":             {value: "many"},  // it takes numbers alone
		"net.ipv4.conf.eth0.rp_filter":        {value: "1 2"},   // the kernel takes the first alone
		"net.ipv4.ip_unprivileged_port_start": {value: "70000"}, // there are fewer
		"net.ipv4.ip_forward":                 {value: "1", other: "net.ipv4.conf.all.forwarding"},
	} {
		values := map[string]string{name: tt.value}
		if tt.other != "" {
			values[tt.other] = "0"
		}
		err := new(Network).SetSysctls(p, Result{}, values)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v: %v", values, err)
		}
	}
	for _, gone := range []string{p.NetNS + "-absent", t.TempDir()} {
		if err := new(Network).SetSysctls(Pod{ID: "p1", NetNS: gone}, Result{}, set); err == nil {
			t.Errorf("%s: no error", gone)
		}
	}
}
