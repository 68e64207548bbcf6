// SPDX-License-Identifier: Apache-2.0

package image

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Credentials are for one registry. At most one of the three kinds is set.
type Credentials struct {
	Username, Password string
	// IdentityToken is exchanged for a bearer token at the token server that the registry names.
	IdentityToken string
	// RegistryToken is the bearer token itself: it goes to the registry and to no token server.
	RegistryToken string
}

// String keeps credentials out of logs and errors.
func (c Credentials) String() string {
	if c == (Credentials{}) {
		return "none"
	}
	return "(hidden)"
}

// credentials reads CRI's ways of passing them. Those for another registry than the image's are
// refused: they must not go to this one, and without them the pull would fail for a reason that
// names the registry, or bring another image than the caller may have meant.
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
			return Credentials{}, fmt.Errorf("auth.server_address: the credentials are for %q, and the image is of %q; leave auth out, or give those of that registry: %w",
				host, want, errdefs.ErrInvalidArgument)
		}
	}
	switch {
	case a.GetUsername() != "" || a.GetPassword() != "":
		return Credentials{Username: a.GetUsername(), Password: a.GetPassword()}, nil
	case a.GetIdentityToken() != "":
		return Credentials{IdentityToken: a.GetIdentityToken()}, nil
	case a.GetRegistryToken() != "":
		return Credentials{RegistryToken: a.GetRegistryToken()}, nil
	case a.GetAuth() != "":
		b, err := base64.StdEncoding.DecodeString(a.GetAuth())
		if err != nil {
			return Credentials{}, fmt.Errorf("auth is not base64: %w", errdefs.ErrInvalidArgument)
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
