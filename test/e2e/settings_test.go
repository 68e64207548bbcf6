// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// proxy is an HTTP proxy that leads to registries under names that nobody else knows.
type proxy struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string          // "METHOD HOST"
	hosts map[string]string // where a host is
}

func startProxy(t *testing.T) *proxy {
	p := &proxy{hosts: map[string]string{}}
	p.Server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	return p
}

func (p *proxy) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, r.Method+" "+r.Host)
	to, ok := p.hosts[r.Host]
	p.mu.Unlock()
	switch {
	case !ok:
		http.Error(w, "no such host", http.StatusBadGateway)
	case r.Method == http.MethodConnect:
		there, err := net.Dial("tcp", to)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusOK)
		here, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			_ = there.Close()
			return
		}
		go func() { _, _ = io.Copy(there, here); _ = there.Close() }()
		go func() { _, _ = io.Copy(here, there); _ = here.Close() }()
	default:
		httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: to}).ServeHTTP(w, r)
	}
}

func (p *proxy) saw(request string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.asked, request)
}

// Pulls go through the proxies of berth's environment, as those of containerd and CRI-O do, for
// registries with and without TLS. What NO_PROXY names is asked directly.
func TestPullsGoThroughTheProxiesOfTheEnvironment(t *testing.T) {
	p := startProxy(t)
	plain, secure := testregistry.Start(t), testregistry.Start(t, testregistry.TLS())
	p.hosts["plain.example"], p.hosts["secure.example:443"] = plain.Addr, secure.Addr
	img, err := testimage.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	plain.Push("team/app:1", img)
	secure.Push("team/app:1", img)
	_, port, err := net.SplitHostPort(plain.Addr)
	if err != nil {
		t.Fatal(err)
	}
	direct := "0.0.0.0:" + port // which is this host, and not an address of the loopback, to which no proxy is ever used
	certs := t.TempDir()
	for host, text := range map[string]string{
		"plain.example":  "server = 'http://plain.example'\n",
		"secure.example": "server = 'https://secure.example'\nskip_verify = true\n",
		"direct.example": "server = 'http://" + direct + "'\n",
	} {
		if err := os.MkdirAll(filepath.Join(certs, host), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(certs, host, "hosts.toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// net/http reads the variables once in a process: before they are those of berth.
	if _, err := http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: "http", Host: direct}}); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HTTP_PROXY", p.URL)
	t.Setenv("HTTPS_PROXY", p.URL)
	t.Setenv("NO_PROXY", "0.0.0.0")
	node.Modes(t, func(t *testing.T, external bool) {
		n := node.Start(t, node.Options{External: external, Args: []string{"--set", "image.registry_dir=" + certs}})
		pull := func(host string) error {
			_, err := n.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: host + "/team/app:1"}})
			return err
		}
		for host, want := range map[string]string{"plain.example": "HEAD plain.example", "secure.example": "CONNECT secure.example:443", "direct.example": ""} {
			if err := pull(host); err != nil {
				t.Errorf("%s: %v", host, err)
			}
			if want != "" && !p.saw(want) {
				t.Errorf("the proxy did not see %q", want)
			}
		}
		if p.saw("HEAD "+direct) || p.saw("GET "+direct) {
			t.Error("a host of NO_PROXY was asked through the proxy")
		}
	})
}

// Some agents know CRI-O alone: they look for its socket, and for its name before the ID of a
// container. Drop-in files give them both. A drop-in file that sets one key of a handler leaves the
// others.
func TestDropInFilesGiveAnAgentItsSocketAndName(t *testing.T) {
	t.Parallel()
	dir := node.TempDir(t)
	also := filepath.Join(dir, "crio", "crio.sock")
	drop := filepath.Join(dir, "conf.d")
	if err := os.MkdirAll(drop, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"10-agents.toml":  fmt.Sprintf("[cri]\nruntime_name = 'containerd'\nsockets = [%q]\n", also),
		"20-agents.toml":  "[cri]\nruntime_name = 'cri-o'\n",
		"30-runtime.toml": "[runtimes.runc]\nprivileged_without_host_devices = true\n",
	} {
		if err := os.WriteFile(filepath.Join(drop, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n := node.Start(t, node.Options{Dir: dir})
	ask := func() {
		t.Helper()
		c := node.Dial(t, also)
		defer c.Close()
		v, err := c.RuntimeServiceClient.Version(t.Context(), &runtimeapi.VersionRequest{})
		if err != nil || v.GetRuntimeName() != "cri-o" {
			t.Errorf("got %v, %v", v, err)
		}
		list, err := c.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
		if err != nil || len(list.GetImages()) == 0 {
			t.Errorf("images: %v, %v", list, err)
		}
	}
	ask()
	_, id := n.Sh("exit 3")
	node.ExpectExit(t, n.Ended(id), 3, "Error")
	n.Berth.Kill(9)
	n.StartBerth()
	ask()
}
