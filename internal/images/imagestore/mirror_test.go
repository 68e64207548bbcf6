// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"encoding/base64"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"

	"berth/internal/base/connection"
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

// A mirror whose disk is damaged, or that lies, ended each pull of the image: the registry that has
// it was not asked, because the mirror had answered: containerd#9552. PROPERTIES 66.
func TestAMirrorThatSendsWrongBytesIsOneTry(t *testing.T) {
	i, _ := parallelStore(t)
	img := layersOf(t, []testimage.File{dir("a"), {Name: "a/file", Mode: 0o644, Body: noise(4 << 20)}},
		[]testimage.File{dir("b"), {Name: "b/file", Mode: 0o644, Body: noise(2 * pieceBytes)}})
	layer, _ := blobOfLayer(t, img, 0)
	large, _ := blobOfLayer(t, img, 1)
	config, err := img.ConfigName()
	try(t, err)
	manifest, err := img.Digest()
	try(t, err)
	wrong := ""
	var asked atomic.Int32
	mirror := testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || path.Base(r.URL.Path) != wrong {
				next.ServeHTTP(w, r)
				return
			}
			asked.Add(1)
			got := httptest.NewRecorder()
			next.ServeHTTP(got, r)
			maps.Copy(w.Header(), got.Header())
			w.WriteHeader(got.Code)
			b := got.Body.Bytes()
			b[len(b)-1] ^= 1
			_, _ = w.Write(b)
		})
	}))
	mirror.Push("team/app:1", img)
	registry := testregistry.Start(t)
	ref := registry.Push("team/app:1", img)
	dir := t.TempDir()
	i.registries.cfg.RegistryDir = dir
	try(t, os.Mkdir(filepath.Join(dir, registry.Addr), 0o700))
	hosts := func(text string) {
		try(t, os.WriteFile(filepath.Join(dir, registry.Addr, "hosts.toml"), []byte(text), 0o600))
	}
	hosts("server = 'http://" + registry.Addr + "'\n[host.'http://" + mirror.Addr + "']\ncapabilities = ['pull', 'resolve']\n")
	for what, dgst := range map[string]string{"layer": layer, "large layer": large, "config": config.String(), "manifest": manifest.String()} {
		wrong = dgst
		asked.Store(0)
		st := pulled(t, i, ref)
		// Of the large one it is asked for three pieces, and then for all of it by one connection.
		if n := asked.Load(); n != 1 && (dgst != large || n != 4) {
			t.Errorf("%s: the mirror was asked for it %d times", what, n)
		}
		for _, n := range st.NamesGiven() {
			try(t, i.Delete(t.Context(), n))
		}
		try(t, i.collect(connection.Namespaced(t.Context())))
	}
	// Nobody else has it: the error is that of the bytes, and not that it is nowhere.
	hosts("server = 'http://" + mirror.Addr + "'\n")
	_, err = i.Pull(t.Context(), ref, image.Credentials{}, "", nil)
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("with the mirror alone: %v", err)
	}
}

// PROPERTIES 66: a mistake in hosts.toml had the registry asked, past its mirrors.
func TestAMistakeInHostsTomlStopsThePull(t *testing.T) {
	reg := testregistry.Start(t)
	img, err := testimage.Image(v1Config())
	try(t, err)
	ref, dir := reg.Push("team/app:1", img), t.TempDir()
	try(t, os.Mkdir(filepath.Join(dir, reg.Addr), 0o700))
	file := filepath.Join(dir, reg.Addr, "hosts.toml")
	try(t, os.WriteFile(file, []byte("server = 'http://"+reg.Addr+"'\n[host.'http://mirror.example']\ncapabilities = 'pull'\n"), 0o600))
	i := open(nil, Config{RegistryDir: dir})
	_, _, err = newResolver(i.registries.hosts(t.Context(), reg.Addr, image.Credentials{}, func(int) {})).Resolve(t.Context(), ref)
	if err == nil || !strings.Contains(err.Error(), file+", line 3: ") || len(reg.Requests()) > 0 {
		t.Errorf("%v, and the registry was asked %d times", err, len(reg.Requests()))
	}
}
