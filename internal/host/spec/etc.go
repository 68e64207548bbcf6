// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Hosts returns /etc/hosts of a pod with these addresses, which its hostname stands for. On the
// host's network it has none of its own.
func Hosts(hostname string, addresses []string) []byte {
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	if len(addresses) == 0 {
		addresses = []string{"127.0.1.1"}
	}
	for _, a := range addresses {
		fmt.Fprintf(&b, "%s\t%s\n", a, hostname)
	}
	return []byte(b.String())
}

// EtcFiles returns /etc/hostname and /etc/resolv.conf of a pod. If the pod has DNS settings of its
// own, the host's resolv.conf is not used. No value can end its line, nor can the hostname in
// Hosts.
func EtcFiles(cfg *runtimeapi.PodSandboxConfig, hostResolv []byte, hostname string) (name, resolv []byte, err error) {
	if err := checkHostname(hostname); err != nil {
		return nil, nil, err
	}
	name = []byte(hostname + "\n")
	dns := cfg.GetDnsConfig()
	all := slices.Concat(dns.GetServers(), dns.GetSearches(), dns.GetOptions())
	if len(all) == 0 {
		return name, hostResolv, nil
	}
	for _, v := range all {
		if strings.ContainsAny(v, "\n\r\x00") {
			return nil, nil, fmt.Errorf("dns_config: %q is more than one line: %w", v, errdefs.ErrInvalidArgument)
		}
	}
	var b strings.Builder
	if s := dns.GetSearches(); len(s) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(s, " "))
	}
	for _, s := range dns.GetServers() {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if o := dns.GetOptions(); len(o) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(o, " "))
	}
	return name, []byte(b.String()), nil
}

// checkHostname refuses a name that could end its line in /etc/hosts, or that sethostname(2) does
// not take.
func checkHostname(hostname string) error {
	if strings.ContainsAny(hostname, " \t\r\n\x00") || len(hostname) > 64 {
		return fmt.Errorf("hostname: %q is not one: %w", hostname, errdefs.ErrInvalidArgument)
	}
	return nil
}
