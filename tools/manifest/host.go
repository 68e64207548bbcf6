// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bufio"
	"net"
	"os"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// HostIP returns the first address of this host that others can reach, or "" if there is none.
func HostIP() string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return ""
}

// HostDNS returns the content of /etc/resolv.conf (resolv.conf(5)), or nil if there is no such
// file.
func HostDNS() *runtimeapi.DNSConfig {
	f, err := os.Open("/etc/resolv.conf")
	if err != nil {
		return nil
	}
	defer f.Close()
	d := &runtimeapi.DNSConfig{}
	for in := bufio.NewScanner(f); in.Scan(); {
		w := strings.Fields(in.Text())
		switch {
		case len(w) < 2:
		case w[0] == "nameserver":
			d.Servers = append(d.Servers, w[1])
		case w[0] == "search": // the last search line counts
			d.Searches = w[1:]
		case w[0] == "options":
			d.Options = append(d.Options, w[1:]...)
		}
	}
	return d
}
