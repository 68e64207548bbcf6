// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

const (
	// nameLife is how long the addresses of a name are believed, and also that there are none.
	nameLife = 10 * time.Second
	// maxPeers bounds the list.
	maxPeers = 10000
)

// addresses says who the peers are.
type addresses struct {
	entries []string // HOST:PORT, where HOST is an address or a name
	lookup  func(ctx context.Context, host string) ([]netip.Addr, error)
	// own returns the address on which this node serves its peers; nil if it does not.
	own func() net.Addr
	// local returns the addresses of this node.
	local   func() []netip.Addr
	timeout time.Duration // of one lookup
	failed  func(name string, err error)

	mu    sync.Mutex
	known map[string]resolved // by name
}

type resolved struct {
	addrs []netip.Addr
	at    time.Time
}

// all returns the peers, without this node.
func (a *addresses) all(ctx context.Context) []netip.AddrPort {
	var list []netip.AddrPort
	seen := map[netip.AddrPort]bool{}
	for _, entry := range a.entries {
		host, service, err := net.SplitHostPort(entry)
		if err != nil {
			continue // the configuration was checked
		}
		port, err := strconv.ParseUint(service, 10, 16)
		if err != nil {
			continue
		}
		addrs := []netip.Addr{}
		if ip, err := netip.ParseAddr(host); err == nil {
			addrs = append(addrs, ip)
		} else {
			addrs = a.resolve(ctx, host)
		}
		for _, ip := range addrs {
			p := netip.AddrPortFrom(ip.Unmap(), uint16(port))
			if !seen[p] && len(list) < maxPeers {
				seen[p] = true
				list = append(list, p)
			}
		}
	}
	return a.others(list)
}

// resolve returns the addresses of a name. A name that cannot be resolved has none for as long as
// one that was resolved keeps its own, so that not each blob waits for a server that does not
// answer.
func (a *addresses) resolve(ctx context.Context, host string) []netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock() // calls that come meanwhile want the same answer
	if r, ok := a.known[host]; ok && time.Since(r.at) < nameLife {
		return r.addrs
	}
	asking, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	addrs, err := a.lookup(asking, host)
	if ctx.Err() != nil {
		return nil // the pull has ended, which says nothing about the name
	}
	if err != nil {
		addrs = nil
		a.failed(host, err)
	}
	if a.known == nil {
		a.known = map[string]resolved{}
	}
	a.known[host] = resolved{addrs, time.Now()}
	return addrs
}

// others leaves this node out of a list.
func (a *addresses) others(list []netip.AddrPort) []netip.AddrPort {
	own, err := netip.ParseAddrPort(stringOf(a.own()))
	if err != nil {
		return list
	}
	mine := map[netip.Addr]bool{own.Addr().Unmap(): true}
	if own.Addr().IsUnspecified() {
		for _, ip := range a.local() {
			mine[ip.Unmap().WithZone("")] = true
		}
	}
	var rest []netip.AddrPort
	for _, p := range list {
		if p.Port() != own.Port() || !mine[p.Addr().WithZone("")] {
			rest = append(rest, p)
		}
	}
	return rest
}

func stringOf(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}

// localAddrs returns the addresses of this host's interfaces.
func localAddrs() (list []netip.Addr) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil // a node that asks itself is told that nothing is there
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			list = append(list, p.Addr())
		}
	}
	return list
}

// lookupWith returns a function that resolves names at a DNS server, or as this host does with "".
func lookupWith(server string) func(context.Context, string) ([]netip.Addr, error) {
	r := &net.Resolver{PreferGo: true}
	if server != "" {
		r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, server)
		}
	}
	return func(ctx context.Context, host string) ([]netip.Addr, error) {
		return r.LookupNetIP(ctx, "ip", host)
	}
}
