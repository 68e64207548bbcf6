// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// listener is a socket of TCP that somebody listens on.
type listener struct {
	at    netip.AddrPort
	inode string
}

// listeners reads who listens.
func (m *machine) listeners() ([]listener, error) {
	all := []listener{}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := m.read(file)
		if absent(err) && file == "/proc/net/tcp6" {
			continue // the kernel has no IPv6
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(text) {
			w := strings.Fields(line)
			const listens = "0A"
			if len(w) < 10 || w[3] != listens {
				continue
			}
			at, err := procAddress(w[1])
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", file, err)
			}
			all = append(all, listener{at, w[9]})
		}
	}
	return all, nil
}

// procAddress reads an address in the form of /proc/net/tcp: words of four bytes, each in the order
// of a little-endian machine, and the port.
func procAddress(s string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	p, perr := hex.DecodeString(port)
	if err != nil || perr != nil || len(p) != 2 || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address", s)
	}
	for i := 0; i < len(b); i += 4 {
		slices.Reverse(b[i : i+4])
	}
	addr, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(addr.Unmap(), uint16(p[0])<<8|uint16(p[1])), nil
}

// owner returns the process that has a socket open, and the name of its program; "" if that is
// not known.
func (m *machine) owner(inode string) (pid, program string) {
	links, _ := filepath.Glob(m.path("/proc/[0-9]*/fd/*"))
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && to == "socket:["+inode+"]" {
			pid = filepath.Base(filepath.Dir(filepath.Dir(l)))
			program, _ = m.read("/proc/" + pid + "/comm")
			return pid, program
		}
	}
	return "", ""
}

func askPorts(_ context.Context, m *machine) ([]Finding, error) {
	var f findings
	var all []listener
	for _, s := range []struct{ key, at, what string }{
		{"streams.address", m.cfg.Streams.Address, "exec, attach and port-forward do not work"},
		{"metrics.address", m.cfg.Metrics.Address, "there are no metrics"},
		{"image.peer.address", m.cfg.Image.Peer.Address, "other nodes get no images from this one"},
	} {
		at, err := netip.ParseAddrPort(s.at)
		if s.at == "" || err == nil && at.Port() == 0 {
			continue // off, or any free port
		}
		if err != nil {
			f.unasked(fmt.Errorf("%s is %s, which is not an IP address and a port", s.key, s.at))
			continue
		}
		if all == nil {
			if all, err = m.listeners(); err != nil {
				return nil, err
			}
		}
		for _, l := range all {
			same := l.at.Addr() == at.Addr() || l.at.Addr().IsUnspecified() || at.Addr().IsUnspecified()
			if l.at.Port() != at.Port() || !same {
				continue
			}
			pid, program := m.owner(l.inode)
			switch {
			case program == "berth":
			case pid == "" && m.runs():
				f.unasked(fmt.Errorf("whether it is berth that listens on %s cannot be seen; run this as root", l.at))
			default:
				who := "another process"
				if pid != "" {
					who = fmt.Sprintf("%s (process %s)", program, pid)
				}
				f.add(Error, "stop it, or set "+s.key+" to another port", "%s is %s, where %s listens already: %s", s.key, s.at, who, s.what)
			}
			break
		}
	}
	if all == nil && len(f.errs) == 0 {
		return nil, errNothing("no port is configured")
	}
	return f.result()
}
