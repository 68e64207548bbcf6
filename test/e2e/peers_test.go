// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/peertest"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// egress is what a registry has sent, by what it was.
type egress struct {
	mu       sync.Mutex
	blobs    int64 // bytes of layers and configurations
	all      int64
	requests int
}

func (e *egress) front(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &countedAnswer{ResponseWriter: w}
		next.ServeHTTP(c, r)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.requests++
		e.all += c.n
		if strings.Contains(r.URL.Path, "/blobs/") {
			e.blobs += c.n
		}
	})
}

// taken returns what the registry has sent since it was asked last.
func (e *egress) taken() (blobs, all int64, requests int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	blobs, all, requests = e.blobs, e.all, e.requests
	e.blobs, e.all, e.requests = 0, 0, 0
	return blobs, all, requests
}

type countedAnswer struct {
	http.ResponseWriter
	n int64
}

func (c *countedAnswer) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.n += int64(n)
	return n, err
}

// PROPERTIES 41: of three berths, each on a network of its own, the first one takes an image from the
// registry, and the others take no byte of it from there: they ask what its name stands for. An
// address in the list at which nobody is changes nothing.
func TestThreeBerthsTakeAnImageFromTheRegistryOnce(t *testing.T) {
	t.Parallel()
	lan := node.NewLAN(t, 3)
	dir := node.TempDir(t)
	var sent egress
	reg := testregistry.Start(t, testregistry.Address(lan.Address), testregistry.Front(sent.front))
	img, size := incompressible(t, 3, 4<<20)
	ref := reg.Push("team/app:1", img)
	if err := os.MkdirAll(filepath.Join(dir, "certs.d", reg.Addr), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "certs.d", reg.Addr, "hosts.toml"), []byte("server = 'http://"+reg.Addr+"'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ca := peertest.NewAuthority(t, dir)
	hosts := []string{strconv.Quote(strings.TrimSuffix(lan.Address, "1") + "200:5443")} // nobody
	for _, h := range lan.Hosts {
		hosts = append(hosts, strconv.Quote(h.Address+":5443"))
	}
	start := func(i int, name string) *node.Node {
		files := ca.Node(fmt.Sprintf("node-%d", i), name)
		var args []string
		for k, v := range map[string]string{
			"image.registry_dir":   filepath.Join(dir, "certs.d"),
			"image.peer.address":   lan.Hosts[i].Address + ":5443",
			"image.peer.hosts":     "[" + strings.Join(hosts, ",") + "]", // itself included
			"image.peer.ca_file":   files.CA,
			"image.peer.cert_file": files.Cert,
			"image.peer.key_file":  files.Key,
			"metrics.address":      lan.Hosts[i].Address + ":9000",
		} {
			args = append(args, "--set", k+"="+v)
		}
		n := node.Start(t, node.Options{NetNS: lan.Hosts[i].NetNS, Args: args})
		n.Until("it serves metrics", func() bool { return metric(lan.Hosts[i], "berth_peer_sent_bytes_total") >= 0 })
		return n
	}
	pull := func(n *node.Node) {
		t.Helper()
		if _, err := n.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
			t.Fatal(err)
		}
	}
	var nodes []*node.Node
	for i := range 3 {
		nodes = append(nodes, start(i, peertest.Name))
	}
	var report []string
	for i, n := range nodes {
		sent.taken()
		pull(n)
		blobs, all, requests := sent.taken()
		report = append(report, fmt.Sprintf("pull %d: the registry sent %d bytes in %d requests, %d of them of blobs, of an image of %d", i+1, all, requests, blobs, size))
		if i == 0 && blobs < size {
			t.Errorf("the first pull took %d bytes of %d from the registry", blobs, size)
		}
		if i > 0 && (blobs != 0 || all != 0) {
			t.Errorf("pull %d took %d bytes of blobs from the registry, %d in all", i+1, blobs, all)
		}
		if got := metric(lan.Hosts[i], "berth_peer_received_bytes_total"); (got >= float64(size)) != (i > 0) {
			t.Errorf("node %d says that peers sent it %v bytes", i+1, got)
		}
	}
	t.Log(strings.Join(report, "\n"))
	for i, n := range nodes {
		if _, err := n.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			pull(n) // from the others, who still have it
			if blobs, _, _ := sent.taken(); blobs != 0 {
				t.Errorf("pulled again, %d bytes of blobs came from the registry", blobs)
			}
		}
	}
	if _, err := nodes[0].RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err == nil {
		pull(nodes[1]) // nobody has it any more
		if blobs, _, _ := sent.taken(); blobs < size {
			t.Errorf("%d bytes of blobs came from the registry where no peer has any", blobs)
		}
	}
}

// incompressible is an image of layers of so many bytes each, and their size as they are sent.
func incompressible(t *testing.T, layers, bytes int) (img v1.Image, size int64) {
	t.Helper()
	var made []v1.Layer
	for i := range layers {
		body := make([]byte, bytes)
		_, _ = rand.Read(body)
		layer, err := testimage.Layer(testimage.File{Name: fmt.Sprintf("f%d", i), Mode: 0o644, Body: body})
		if err != nil {
			t.Fatal(err)
		}
		n, err := layer.Size()
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, layer)
		size += n
	}
	img, err := testimage.Image(v1.Config{}, made...)
	if err != nil {
		t.Fatal(err)
	}
	return img, size
}

// metric reads a metric of a host; less than 0 if it cannot be read.
func metric(h node.Host, name string) float64 {
	resp, err := http.Get("http://" + h.Address + ":9000/metrics") // of the test's own berth
	if err != nil {
		return -1
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(b)
	if err != nil || m == nil {
		return -1
	}
	v, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		return -1
	}
	return v
}
