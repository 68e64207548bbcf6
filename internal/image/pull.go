// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type pullKey struct {
	ref   string
	creds Credentials
}

// pull is one pull in flight.
type pull struct {
	waiting int // callers; guarded by Service.mu
	cancel  context.CancelCauseFunc
	done    chan struct{}
	id      string
	err     error
}

// Pull makes sure that the image is here in the version that the registry has now, and returns its ID.
func (s *Service) Pull(ctx context.Context, ref string, auth *runtimeapi.AuthConfig) (string, error) {
	name, err := Normalize(ref)
	if err != nil {
		return "", err
	}
	creds, err := credentials(name, auth)
	if err != nil {
		return "", fmt.Errorf("pull %s: %w", name, err)
	}
	key := pullKey{name, creds}
	s.mu.Lock()
	p, ok := s.mu.pulls[key]
	if !ok {
		pctx, cancel := context.WithCancelCause(context.Background())
		p = &pull{cancel: cancel, done: make(chan struct{})}
		s.mu.pulls[key] = p
		s.ops.Go(func() { s.pull(pctx, key, p) })
	}
	p.waiting++
	s.mu.Unlock()
	select {
	case <-p.done:
		return p.id, p.err
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		if p.waiting--; p.waiting == 0 {
			p.cancel(errGone)
			if s.mu.pulls[key] == p {
				delete(s.mu.pulls, key) // who comes now begins anew
			}
		}
		return "", fmt.Errorf("pull %s: %w", name, ctx.Err())
	}
}

func (s *Service) pull(ctx context.Context, key pullKey, p *pull) {
	defer close(p.done)
	defer p.cancel(nil)
	timeout := fmt.Errorf("no byte came from the registry for %s", s.cfg.PullTimeout)
	idle := time.AfterFunc(s.cfg.PullTimeout, func() { p.cancel(timeout) })
	defer idle.Stop()
	st, err := s.backend.Pull(ctx, key.ref, key.creds, func() { idle.Reset(s.cfg.PullTimeout) })
	if err == nil {
		err = s.keep(ctx, st)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.pulls[key] == p {
		delete(s.mu.pulls, key)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w (%w)", cause, err)
		}
		p.err = fmt.Errorf("pull %s: %w", key.ref, err)
		return
	}
	p.id = st.ID
}

func (s *Service) cancelPulls() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.mu.pulls {
		p.cancel(errdefs.ErrUnavailable)
	}
}

// credentials reads CRI's ways of giving them. Those for another registry than the image's are refused.
func credentials(name string, a *runtimeapi.AuthConfig) (Credentials, error) {
	if a == nil {
		return Credentials{}, nil
	}
	if a.GetServerAddress() != "" {
		named, err := reference.ParseDockerRef(name)
		if err != nil {
			return Credentials{}, err
		}
		host := a.GetServerAddress()
		if u, err := url.Parse(host); err == nil && u.Host != "" {
			host = u.Host
		}
		if want := reference.Domain(named); !sameHost(host, want) {
			return Credentials{}, nil // not for this registry: it gets none
		}
	}
	switch {
	case a.GetUsername() != "" || a.GetPassword() != "":
		return Credentials{Username: a.GetUsername(), Password: a.GetPassword()}, nil
	case a.GetIdentityToken() != "":
		return Credentials{Token: a.GetIdentityToken()}, nil
	case a.GetRegistryToken() != "":
		return Credentials{Token: a.GetRegistryToken()}, nil
	case a.GetAuth() != "":
		b, err := base64.StdEncoding.DecodeString(a.GetAuth())
		if err != nil {
			return Credentials{}, fmt.Errorf("auth is no base64: %w", errdefs.ErrInvalidArgument)
		}
		user, pass, ok := strings.Cut(strings.TrimRight(string(b), "\x00"), ":")
		if !ok {
			return Credentials{}, fmt.Errorf("auth is not USER:PASSWORD: %w", errdefs.ErrInvalidArgument)
		}
		return Credentials{Username: user, Password: pass}, nil
	}
	return Credentials{}, nil
}

func sameHost(a, b string) bool {
	hub := func(h string) string {
		switch h = strings.ToLower(strings.TrimSuffix(h, "/")); h {
		case "index.docker.io", "registry-1.docker.io":
			return "docker.io"
		default:
			return h
		}
	}
	return hub(a) == hub(b)
}

// CopyOut copies a directory of the image into dir.
func (s *Service) CopyOut(ctx context.Context, chainID, path, dir string) error {
	return s.backend.CopyOut(ctx, chainID, path, dir)
}

// Snapshotter is where images are unpacked.
func (s *Service) Snapshotter() string { return s.backend.Snapshotter() }
