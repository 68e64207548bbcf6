// SPDX-License-Identifier: Apache-2.0

package peer_test

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/images/peer"
)

func mustAddr(t *testing.T, s string) netip.AddrPort {
	t.Helper()
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// A name stands for peers, and one that cannot be resolved for none: a registry is asked.
func TestANameThatCannotBeResolvedMeansNoPeers(t *testing.T) {
	w := newWorld(t)
	b, want := blob(100)
	_, port, err := net.SplitHostPort(w.serves(with(b)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.client(generous, "localhost:"+port).Copy(t.Context(), want, 0, io.Discard, nothing); err != nil {
		t.Error(err)
	}
	lost := w.clientWith(func(cfg *peer.ClientConfig) {
		cfg.Peers, cfg.DNS, cfg.Timeout = []string{"peers.example:" + port}, nobody(t), short
	})
	for range 3 { // it is asked once
		if _, err := lost.Copy(t.Context(), want, 0, io.Discard, nothing); !errdefs.IsNotFound(err) {
			t.Error(err)
		}
	}
	if got := w.failures(); !slices.Equal(got, []string{peer.KindName}) {
		t.Errorf("failures %v", got)
	}
}
