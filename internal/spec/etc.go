// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// EtcFiles returns /etc/hosts, /etc/hostname and /etc/resolv.conf of a pod. Where the pod has DNS
// settings of its own, the host's resolv.conf is not used. No value can end its line.
func EtcFiles(cfg *runtimeapi.PodSandboxConfig, hostResolv []byte, hostname string) (hosts, name, resolv []byte, err error) {
	if err := checkHostname(hostname); err != nil {
		return nil, nil, nil, err
	}
	hosts = []byte("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t" + hostname + "\n")
	name = []byte(hostname + "\n")
	dns := cfg.GetDnsConfig()
	all := slices.Concat(dns.GetServers(), dns.GetSearches(), dns.GetOptions())
	if len(all) == 0 {
		return hosts, name, hostResolv, nil
	}
	for _, v := range all {
		if strings.ContainsAny(v, "\n\r\x00") {
			return nil, nil, nil, fmt.Errorf("dns_config: %q is more than one line: %w", v, errdefs.ErrInvalidArgument)
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
	return hosts, name, []byte(b.String()), nil
}

// checkHostname refuses a name that could end its line in /etc/hosts, or that sethostname(2) does
// not take.
func checkHostname(hostname string) error {
	if strings.ContainsAny(hostname, " \t\r\n\x00") || len(hostname) > 64 {
		return fmt.Errorf("hostname: %q is not one: %w", hostname, errdefs.ErrInvalidArgument)
	}
	return nil
}
