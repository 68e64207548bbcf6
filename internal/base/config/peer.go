// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
)

// Peer configures how the berths of several nodes give each other the blobs of images.
type Peer struct {
	Address  string   `toml:"address" doc:"HOST:PORT on which the blobs of this node's images are served to peers. Empty: they are not. Of layers that image.discard_blobs drops nothing is served."`
	Hosts    []string `toml:"hosts" doc:"Peers that are asked for blobs before registries are: HOST:PORT, where HOST is an address, or a name that stands for the addresses of any number of peers, such as a headless service. This node may be among them. Empty: none are asked."`
	DNS      string   `toml:"dns" doc:"HOST:PORT of the DNS server at which names of image.peer.hosts are resolved, such as the cluster's. Empty: as this host resolves names."`
	CAFile   string   `toml:"ca_file" doc:"PEM file of the authority that has signed the certificates of all peers, which have the DNS name berth-peer, so that the authority may sign others as well. This file and the next two are read again for each connection."`
	CertFile string   `toml:"cert_file" doc:"PEM file of this node's certificate, which is shown to peers as a server and as a client."`
	KeyFile  string   `toml:"key_file" doc:"PEM file of the certificate's key."`
}

// On reports whether there is anything to be done with peers.
func (p Peer) On() bool { return p.Address != "" || len(p.Hosts) > 0 }

// check reports invalid settings.
func (p Peer) check(bad func(key, format string, args ...any)) {
	if !p.On() {
		return
	}
	if p.Address != "" {
		if _, err := netip.ParseAddrPort(p.Address); err != nil {
			bad("image.peer.address", "%q is not an IP address and a port, such as 10.0.0.5:5443", p.Address)
		}
	}
	for i, h := range p.Hosts {
		if !hostPort(h) {
			bad(fmt.Sprintf("image.peer.hosts[%d]", i), "%q is not HOST:PORT, such as 10.0.0.5:5443", h)
		}
	}
	if p.DNS != "" {
		if _, err := netip.ParseAddrPort(p.DNS); err != nil {
			bad("image.peer.dns", "%q is not an IP address and a port, such as 10.96.0.10:53", p.DNS)
		}
	}
	for _, f := range []struct{ key, v string }{
		{"image.peer.ca_file", p.CAFile},
		{"image.peer.cert_file", p.CertFile},
		{"image.peer.key_file", p.KeyFile},
	} {
		if !filepath.IsAbs(f.v) {
			bad(f.key, "%q is not an absolute path; peers know each other by certificates", f.v)
		}
	}
}

// hostPort reports whether the value is a HOST:PORT to connect to.
func hostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || strings.ContainsAny(host, "/@ ") {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}
