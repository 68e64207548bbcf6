// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/remotes/docker"

	"berth/internal/images/image"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// A mirror that the operator has configured in certs.d is asked instead of the registry, with the
// credentials that the configuration has for it: those of the request are for the registry alone.
func TestAMirrorIsAskedWithItsOwnCredentials(t *testing.T) {
	img, err := testimage.Image(v1Config())
	if err != nil {
		t.Fatal(err)
	}
	mirror := testregistry.Start(t, testregistry.BasicAuth("mirror", "secret"))
	host, _, _ := strings.Cut(mirror.Push("team/app:1", img), "/")
	dir := t.TempDir()
	configure := func(header string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, "registry.example"), 0o700); err != nil {
			t.Fatal(err)
		}
		text := "server = 'http://127.0.0.1:1'\n[host.'http://" + host + "']\ncapabilities = ['pull', 'resolve']\n" + header
		if err := os.WriteFile(filepath.Join(dir, "registry.example", "hosts.toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	resolve := func() error {
		i := open(nil, Config{RegistryDir: dir})
		r := docker.NewResolver(docker.ResolverOptions{
			Hosts: i.registries.hosts(t.Context(), "registry.example", image.Credentials{Username: "mirror", Password: "secret"}, func(int) {}),
		})
		_, _, err := r.Resolve(t.Context(), "registry.example/team/app:1")
		return err
	}
	configure("")
	if resolve() == nil {
		t.Error("the mirror got credentials that were given for the registry")
	}
	configure("[host.'http://" + host + "'.header]\nAuthorization = 'Basic " + base64.StdEncoding.EncodeToString([]byte("mirror:secret")) + "'\n")
	if err := resolve(); err != nil {
		t.Error(err)
	}
}

// The directory of registries is configured by default, and most nodes do not have it.
func TestARegistryNeedsNoConfiguration(t *testing.T) {
	img, err := testimage.Image(v1Config())
	if err != nil {
		t.Fatal(err)
	}
	ref := testregistry.Start(t).Push("team/app:1", img)
	host, _, _ := strings.Cut(ref, "/")
	for _, dir := range []string{"", t.TempDir(), filepath.Join(t.TempDir(), "absent")} {
		i := open(nil, Config{RegistryDir: dir})
		r := docker.NewResolver(docker.ResolverOptions{Hosts: i.registries.hosts(t.Context(), host, image.Credentials{}, func(int) {})})
		if _, _, err := r.Resolve(t.Context(), ref); err != nil {
			t.Errorf("%q: %v", dir, err)
		}
	}
}
