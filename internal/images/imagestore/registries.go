// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"io"
	"net/http"
	"path"
	"path/filepath"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	dockerconfig "github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"

	"berth/internal/base/config"
	"berth/internal/base/ops"
	"berth/internal/images/image"
)

// registries is how registries and mirrors are reached, and with which credentials.
type registries struct {
	*core
	// credentials are those that are configured now, by host; nil: those of cfg.
	credentials atomic.Pointer[map[string]image.Credentials]
	shares      shares // of connections
}

// SetCredentials replaces the credentials of the configuration, for pulls that begin from now on.
func (rs *registries) SetCredentials(byHost map[string]image.Credentials) {
	rs.credentials.Store(&byHost)
}

// hosts configures registries from certs.d directories, if there are any. Only the image's own
// registry gets the credentials of the request: a manifest that names other hosts gets nothing for
// them. A mirror gets those that the configuration has for it.
func (rs *registries) hosts(ctx context.Context, registry string, creds image.Credentials, progress func(n int)) docker.RegistryHosts {
	own := func(host string) bool {
		return host == registry || registry == "docker.io" && host == "registry-1.docker.io"
	}
	o := dockerconfig.HostOptions{
		Credentials: func(host string) (string, string, error) {
			switch {
			case !own(host) || creds == (image.Credentials{}):
				c := rs.configured(host)
				return c.Username, c.Password, nil
			case creds.IdentityToken != "":
				return "", creds.IdentityToken, nil
			default:
				return creds.Username, creds.Password, nil
			}
		},
		UpdateClient: func(c *http.Client) error {
			if t, ok := c.Transport.(*http.Transport); ok {
				t.MaxIdleConns, t.MaxIdleConnsPerHost = perRegistry, perRegistry
			}
			c.Transport, c.CheckRedirect = waiting{counting{c.Transport, progress}}, redirect
			return nil
		},
	}
	if rs.cfg.RegistryDir != "" {
		find := dockerconfig.HostDirFromRoot(rs.cfg.RegistryDir)
		o.HostDir = func(host string) (string, error) {
			dir, err := find(host)
			if err == nil {
				// containerd's code logs a mistake, and asks the registry past the mirrors.
				err = errors.Join(config.CheckHosts(filepath.Join(dir, "hosts.toml"))...)
			}
			return dir, err
		}
	}
	configured := dockerconfig.ConfigureHosts(ctx, o)
	if creds.RegistryToken == "" {
		return configured
	}
	return func(host string) ([]docker.RegistryHost, error) {
		all, err := configured(host)
		for n := range all {
			if own(all[n].Host) {
				all[n].Authorizer = bearer{host: all[n].Host, token: creds.RegistryToken}
			}
		}
		return all, err
	}
}

// configured returns the credentials that the configuration has for a host. Only registries that an
// image is pulled from, and their configured mirrors, are asked about.
func (rs *registries) configured(host string) image.Credentials {
	byHost := rs.cfg.Credentials
	if now := rs.credentials.Load(); now != nil {
		byHost = *now
	}
	if c, ok := byHost[host]; ok || host != "registry-1.docker.io" {
		return c
	}
	return byHost["docker.io"]
}

// bearer authorizes requests to one host with a token that was given for it. Other than
// containerd's authorizer it never sends the token to the token server that the registry names in
// its challenge.
type bearer struct{ host, token string }

// Authorize adds the token to a request, if it goes to the token's host.
func (b bearer) Authorize(_ context.Context, r *http.Request) error {
	if r.URL.Host == b.host {
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return nil
}

// AddResponses is called when the registry refuses: no other token can be tried.
func (b bearer) AddResponses(context.Context, []*http.Response) error {
	return errdefs.ErrNotImplemented
}

// counting reports the bytes that come, and answers as 0 bytes. The rest of a blob can be asked for
// any number of times, and its answers are not reported: bytes have to come.
type counting struct {
	next     http.RoundTripper
	progress func(n int)
}

// RoundTrip carries out one request.
func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	next := c.next
	if next == nil {
		next = http.DefaultTransport
	}
	_, op := ops.Begin(r.Context(), ops.Work{Kind: ops.Registry, What: "the registry " + r.URL.Host})
	resp, err := next.RoundTrip(r)
	op.End()
	if err == nil {
		if r.Header.Get("Range") == "" {
			c.progress(0)
		}
		_, body := ops.Begin(r.Context(), ops.Work{Kind: ops.Wait, What: "the rest of " + path.Base(r.URL.Path) + " from " + r.URL.Host})
		resp.Body = countedBody{resp.Body, c.progress, body}
	}
	return resp, err
}

type countedBody struct {
	io.ReadCloser
	progress func(n int)
	op       *ops.Op
}

// Close ends the answer.
func (b countedBody) Close() error {
	b.op.End()
	return b.ReadCloser.Close()
}

// Read reads the next bytes.
func (b countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.progress(n)
	}
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF { //nolint:errorlint // containerd compares those two so
		err = image.Failure{Kind: "unreachable", Err: err}
	}
	return n, err
}
