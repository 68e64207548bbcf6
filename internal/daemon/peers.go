// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"berth/internal/images/imagestore"
	"berth/internal/images/peer"
)

// The bounds of peers. In the simulation of a roll-out more peers asked gain little
// (docs/scale.md).
const (
	peerName    = "berth-peer"    // the DNS name in the certificate of each peer
	peerTimeout = 5 * time.Second // a peer that sends nothing for this long is left
	peersAsked  = 16              // side by side, for one blob
	peerBlobs   = 16              // sent at the same time, a quarter of them to one peer
)

// openPeers makes the server of blobs for peers and the client that asks them, if configured.
func openPeers(b base, contents peer.Contents) (server *peer.Server, asks imagestore.Peers) {
	cfg := b.cfg.Image.Peer
	if !cfg.On() {
		return nil, nil
	}
	files := peer.Files{
		CA:   cfg.CAFile,
		Cert: cfg.CertFile,
		Key:  cfg.KeyFile,
		Name: peerName,
	}
	if cfg.Address != "" {
		if b.cfg.Image.DiscardBlobs {
			b.log.Warn("peers get no layers from this node: image.discard_blobs drops them once they are unpacked")
		}
		server = peer.NewServer(peer.ServerConfig{
			Address:  cfg.Address,
			Files:    files,
			MaxBlobs: peerBlobs,
			Contents: contents,
			Logger:   b.log.Logger,
			Answered: b.metrics.PeerAnswered,
		})
	}
	if len(cfg.Hosts) == 0 {
		return server, nil
	}
	return server, peer.NewClient(peer.ClientConfig{
		Peers:   cfg.Hosts,
		DNS:     cfg.DNS,
		Files:   files,
		Timeout: peerTimeout,
		Ask:     peersAsked,
		Own: func() net.Addr {
			if server == nil {
				return nil
			}
			return server.Addr()
		},
		Logger:   b.log.Logger,
		Received: b.metrics.PeerSent,
		Failed:   b.metrics.PeerFailed,
	})
}

// shared has the blobs that peers may fetch from this node, once containerd is there.
type shared struct {
	link   *link
	stored *imagestore.Store
}

// Open implements peer.Contents.
func (s *shared) Open(ctx context.Context, repository string, dgst digest.Digest) (peer.Content, error) {
	if err := s.link.get(); err != nil {
		return peer.Content{}, fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	}
	return s.stored.Open(ctx, repository, dgst)
}
