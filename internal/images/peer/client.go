// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

const (
	// maxRounds is how often peers are asked for one blob: again when all that had it have failed.
	maxRounds = 3
	// maxFailures is how many peers may fail over one blob before it is left to the registry.
	maxFailures = 3
	// maxRemembered is how many peers are remembered for a repository, and asked before others.
	maxRemembered = 3
	// rememberedFor is for how long.
	rememberedFor = 10 * time.Minute
	// maxRepositories is for how many repositories.
	maxRepositories = 256
)

// ClientConfig says who the peers are and how they are asked.
type ClientConfig struct {
	// Peers are HOST:PORT each, where HOST is an address, or a name that stands for any number of
	// them.
	Peers []string
	// DNS is the HOST:PORT of the server that names are resolved at; "": as this host does.
	DNS   string
	Files Files
	// Timeout is how long a peer may send nothing.
	Timeout time.Duration
	// AskTimeout is how long a peer may take to say whether it has a blob; 0 for a fifth of
	// Timeout.
	AskTimeout time.Duration
	// Ask is how many peers are asked for a blob at the same time.
	Ask int
	// Own returns the address on which this node serves; nil, or a nil address, if it does not.
	Own    func() net.Addr
	Logger *slog.Logger
	// Received is called with the number of bytes that came from a peer, and Failed with the kind
	// of each failure. They may be nil.
	Received func(n int)
	Failed   func(kind string)
}

// Client gets blobs from peers. Its methods may be called from any goroutine.
type Client struct {
	cfg    ClientConfig
	http   *http.Client
	who    *addresses
	asides asides

	mu         sync.Mutex
	remembered map[string]*memory // by repository
}

// memory is who had something of a repository, the latest first.
type memory struct {
	peers []netip.AddrPort
	at    time.Time
}

// NewClient makes a client.
func NewClient(cfg ClientConfig) *Client {
	if cfg.Own == nil {
		cfg.Own = func() net.Addr { return nil }
	}
	if cfg.Received == nil {
		cfg.Received = func(int) {}
	}
	if cfg.Failed == nil {
		cfg.Failed = func(string) {}
	}
	c := &Client{cfg: cfg, remembered: map[string]*memory{}}
	c.who = &addresses{
		entries: cfg.Peers,
		lookup:  lookupWith(cfg.DNS),
		own:     cfg.Own,
		local:   localAddrs,
		timeout: c.askTimeout(),
		failed: func(name string, err error) {
			c.cfg.Failed(KindName)
			c.cfg.Logger.Warn("the name of peers cannot be resolved now: registries are asked", "name", name, "err", err)
		},
	}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialTLSContext:         c.dial,
			DisableCompression:     true,
			MaxIdleConns:           256,
			MaxIdleConnsPerHost:    4,
			IdleConnTimeout:        idleTimeout / 2,
			MaxResponseHeaderBytes: maxHeader,
		},
		// A peer that sends us elsewhere is not a berth.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// askTimeout bounds a question, its connection and its handshake included.
func (c *Client) askTimeout() time.Duration { return cmp.Or(c.cfg.AskTimeout, c.cfg.Timeout/5) }

// dial connects to a peer. No proxy is used.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	cfg, err := c.cfg.Files.client()
	if err != nil {
		return nil, ownError{err}
	}
	raw, err := (&net.Dialer{Timeout: c.cfg.Timeout}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, cfg)
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return conn, nil
}

// Blob is a blob of a repository that a peer is asked for.
type Blob struct {
	Repository string // with the host of its registry, such as docker.io/library/busybox
	Digest     digest.Digest
	Size       int64
	Manifest   bool // or an index
}

// Copied is the result of a copy.
type Copied struct {
	Bytes int64
	From  []netip.AddrPort // that have sent any of it
}

// Copy writes a blob from an offset on as peers send it, one after the other where one fails. It
// returns how far it came; progress is called with each number of bytes. The caller compares the
// digest, and calls Lied if it is another one. ErrNotFound says that no peer is left that could
// send the rest, which is then where the copy ended. Any other error is that of the writer, or of
// ctx.
func (c *Client) Copy(ctx context.Context, b Blob, offset int64, to io.Writer, progress func(n int)) (Copied, error) {
	var done Copied
	failed := map[netip.AddrPort]bool{}
	w := writer{to, progress}
	failures := 0
	for range maxRounds {
		for _, p := range c.find(ctx, b, failed) {
			n, err := c.transfer(ctx, p, b, offset, w)
			offset += n
			done.Bytes += n
			if n > 0 {
				done.From = append(done.From, p)
			}
			if ctx.Err() != nil {
				return done, ctx.Err()
			}
			var store storeError
			switch {
			case err == nil:
				c.asides.good(p)
				c.remember(b.Repository, p)
				return done, nil
			case errors.As(err, &store):
				return done, store.error
			}
			failed[p] = true
			if c.blame(p, err) {
				failures++
			}
			if failures >= maxFailures {
				return done, fmt.Errorf("%d peers have failed: %w", failures, errdefs.ErrNotFound)
			}
		}
		if len(failed) == 0 || ctx.Err() != nil {
			break // no peer has it
		}
	}
	return done, errors.Join(ctx.Err(), errdefs.ErrNotFound)
}

// writer reports the bytes that are written.
type writer struct {
	io.Writer
	progress func(n int)
}

// Write writes the next bytes.
func (w writer) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.progress(n)
	return n, err
}

// Lied puts those aside that have sent bytes of a blob that has another digest. Of several it is
// not known which one.
func (c *Client) Lied(b Blob, from []netip.AddrPort) {
	for _, p := range from {
		c.forget(b.Repository, p)
		c.cfg.Failed(KindLied)
		wait, _ := c.asides.put(p, true)
		c.cfg.Logger.Warn("peer is put aside: what it has sent is not what was asked for", "peer", p, "digest", b.Digest, "for", wait)
	}
}

// blame puts a peer aside for an error that is its fault, and reports whether it is.
func (c *Client) blame(p netip.AddrPort, err error) bool {
	var f failure
	var own ownError
	switch {
	case errors.As(err, &own):
		c.cfg.Logger.Warn("peers cannot be asked: registries are", "err", own.error)
		return false
	case !errors.As(err, &f):
		return false
	}
	c.cfg.Failed(f.kind)
	if wait, news := c.asides.put(p, false); news {
		c.cfg.Logger.Warn("peer is put aside", "peer", p, "for", wait, "err", f.err, "kind", f.kind)
	}
	return true
}

// find asks some peers side by side, and returns those that have a blob as soon as there is one, or
// none once all have answered. Those that do not are added to without.
func (c *Client) find(ctx context.Context, b Blob, without map[netip.AddrPort]bool) []netip.AddrPort {
	asked := c.candidates(ctx, b.Repository, without)
	type answer struct {
		p   netip.AddrPort
		err error
	}
	answers := make(chan answer, len(asked))
	for _, p := range asked {
		go func() {
			err := c.has(ctx, p, b)
			if ctx.Err() == nil {
				c.blame(p, err)
			}
			answers <- answer{p, err}
		}()
	}
	var have []netip.AddrPort
	for n := 0; n < len(asked) && (len(have) == 0 || len(answers) > 0); n++ {
		a := <-answers
		switch {
		case a.err == nil:
			have = append(have, a.p)
		case errors.Is(a.err, errAbsent):
			c.forget(b.Repository, a.p)
		}
	}
	return have
}

// candidates returns the peers that are asked next: those that had something of the repository, and
// others at random.
func (c *Client) candidates(ctx context.Context, repository string, without map[netip.AddrPort]bool) []netip.AddrPort {
	all := c.who.all(ctx)
	there := map[netip.AddrPort]bool{}
	for _, p := range all {
		there[p] = true
	}
	if len(all) > 0 { // with none, names could perhaps not be resolved
		c.asides.forget(func(p netip.AddrPort) bool { return there[p] })
	}
	var list []netip.AddrPort
	add := func(p netip.AddrPort) {
		if len(list) < c.cfg.Ask && there[p] && !without[p] && !slices.Contains(list, p) && !c.asides.has(p) {
			list = append(list, p)
		}
	}
	for _, p := range c.recall(repository) {
		add(p)
	}
	for _, i := range rand.Perm(len(all)) { // whom to ask is no secret
		if add(all[i]); len(list) == c.cfg.Ask {
			break
		}
	}
	return list
}

// remember notes that a peer had something of a repository.
func (c *Client) remember(repository string, p netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.remembered[repository]
	if m == nil {
		if len(c.remembered) >= maxRepositories {
			for k := range c.remembered { // any: it is a hint
				delete(c.remembered, k)
				break
			}
		}
		m = &memory{}
		c.remembered[repository] = m
	}
	m.at = time.Now()
	m.peers = slices.DeleteFunc(m.peers, func(q netip.AddrPort) bool { return q == p })
	m.peers = slices.Insert(m.peers, 0, p)
	m.peers = m.peers[:min(len(m.peers), maxRemembered)]
}

// recall returns who had something of a repository.
func (c *Client) recall(repository string) []netip.AddrPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.remembered[repository]
	if m == nil || time.Since(m.at) > rememberedFor {
		return nil
	}
	return slices.Clone(m.peers)
}

// forget forgets that a peer had something of a repository.
func (c *Client) forget(repository string, p netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.remembered[repository]; m != nil {
		m.peers = slices.DeleteFunc(m.peers, func(q netip.AddrPort) bool { return q == p })
	}
}
