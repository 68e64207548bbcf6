// SPDX-License-Identifier: Apache-2.0

package config

import "strings"

// Auth holds the credentials of this node at a registry.
type Auth struct {
	Username string `toml:"username" doc:"User at the registry."`
	Password Secret `toml:"password" doc:"Password or access token of that user. It is never logged or shown."`
}

// Secret is a text that is read from the configuration and never written: not into logs, nor into
// answers.
type Secret string

const hidden = "(hidden)"

// String keeps the secret out of logs and errors.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// GoString keeps the secret out of debug output.
func (s Secret) GoString() string { return s.String() }

// MarshalText keeps the secret out of JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the secret.
func (s *Secret) UnmarshalText(b []byte) error {
	*s = Secret(b)
	return nil
}

// checkAuth reports credentials that no registry could get.
func checkAuth(auth map[string]Auth, bad func(key, format string, args ...any)) {
	for host, a := range auth {
		key := "image.auth." + quoteKey(host)
		if host == "" || strings.ContainsAny(host, "/@ ") {
			bad(key, "%q is not the host of a registry, such as registry.example or registry.example:5000", host)
		}
		if a.Username == "" || a.Password == "" {
			bad(key, "username and password are set together")
		}
		if a.Password == hidden {
			bad(key+".password", "%s is the placeholder that `berth config show` writes for a password", hidden)
		}
	}
}
