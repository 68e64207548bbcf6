// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"berth/internal/images/peer"
)

// openPeers makes what serves peers and what asks them, as far as that is configured.
func (d *daemon) openPeers() error {
	cfg := d.cfg.Image.Peer
	if !cfg.On() {
		return nil
	}
	files := peer.Files{
		CA:   cfg.CAFile,
		Cert: cfg.CertFile,
		Key:  cfg.KeyFile,
		Name: cfg.Name,
	}
	if cfg.Address != "" {
		if d.cfg.Image.DiscardBlobs {
			d.log.Warn("peers get no layers from this node: image.discard_blobs drops them once they are unpacked")
		}
		d.peers = peer.NewServer(peer.ServerConfig{
			Address:  cfg.Address,
			Files:    files,
			MaxBlobs: cfg.MaxBlobs,
			Contents: shared{d},
			Logger:   d.log.Logger,
			Answered: d.metrics.PeerAnswered,
		})
	}
	if len(cfg.Hosts) == 0 {
		return nil
	}
	d.asks = peer.NewClient(peer.ClientConfig{
		Peers:   cfg.Hosts,
		DNS:     cfg.DNS,
		Files:   files,
		Timeout: time.Duration(cfg.Timeout),
		Ask:     cfg.Ask,
		Own: func() net.Addr {
			if d.peers == nil {
				return nil
			}
			return d.peers.Addr()
		},
		Logger:   d.log.Logger,
		Received: d.metrics.PeerSent,
		Failed:   d.metrics.PeerFailed,
	})
	return nil
}

// servePeers serves peers, if an address is configured.
func (d *daemon) servePeers(ctx context.Context) error {
	if d.peers == nil {
		<-ctx.Done()
		return nil
	}
	return d.peers.Run(ctx)
}

// shared is what peers may have of this node, once containerd is there.
type shared struct{ d *daemon }

// Open implements peer.Contents.
func (s shared) Open(ctx context.Context, repository string, dgst digest.Digest) (peer.Content, error) {
	if err := s.d.link.get(); err != nil {
		return peer.Content{}, fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	}
	return s.d.stored.Open(ctx, repository, dgst)
}
