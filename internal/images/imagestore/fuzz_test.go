// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/images/image"
)

// A configuration of an image that cannot be read is ErrInvalidArgument, and one that can keeps no more
// memory than is allowed.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"config":{"Cmd":["a"],"Env":["A=b"]},"rootfs":{"type":"layers","diff_ids":["sha256:00"]}}`))
	f.Add([]byte(`{"config":{"ExposedPorts":{"":null}},"rootfs":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, kept, err := parseConfig(b)
		if err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v is not ErrInvalidArgument", err)
		}
		if kept > maxConfig {
			t.Errorf("%d bytes are kept", kept)
		}
	})
}

// A registry's credentials go to the registry that they are for, and to no other host, whatever its
// hosts.toml says; and none makes a pull panic.
func FuzzHosts(f *testing.F) {
	f.Add([]byte("server = 'https://registry.example'\n[host.'http://127.0.0.1:5000']\ncapabilities = ['pull', 'resolve']\n"))
	f.Add([]byte("[host.'']\nheader = {a = 1}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "registry.example"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "registry.example", "hosts.toml"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		i := open(nil, Config{RegistryDir: dir})
		hosts, err := i.registries.hosts(t.Context(), "registry.example", image.Credentials{Username: "u", Password: "secret"}, func(int) {})("registry.example")
		if err == nil && len(hosts) == 0 {
			t.Errorf("%q leaves no host that could be asked", text)
		}
	})
}

// An answer to a request for a range of a blob is accepted only if its Content-Range names a range.
func FuzzRange(f *testing.F) {
	f.Add("bytes 10-19/100", int64(10), int64(20), int64(100))
	f.Fuzz(func(t *testing.T, header string, from, to, size int64) {
		p := part{from: from, to: to, size: size}
		err := p.answered(&http.Response{StatusCode: http.StatusPartialContent, Header: http.Header{"Content-Range": {header}}})
		if want := fmt.Sprintf("bytes %d-%d/%d", from, to-1, size); err != nil && header == want || err == nil && !strings.Contains(header, "-") {
			t.Errorf("%q is taken for %q: %v", header, want, err)
		}
	})
}
