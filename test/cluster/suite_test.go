// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"berth/test/command"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// Kubernetes' own end-to-end suite, or the part that `make test-conformance` selects, on two nodes
// of berth, or of containerd's CRI plug-in for comparison. They pull the suite's images from a
// registry that serves stand-ins of them.
func TestKubernetesSuite(t *testing.T) {
	o := options{nodes: 2}
	if os.Getenv("BERTH_SUITE_RUNTIME") == "containerd" {
		o.foreign = o.nodes
	}
	c := start(t, o)
	c.serveImages()
	dir := c.module + "/build/suite"
	_ = os.Remove(dir + "/report.json") // of an earlier run: a suite that is killed writes none
	log, err := os.Create(dir + "/ginkgo.log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := command.Within(t, 12*time.Hour, dir+"/ginkgo", "-procs="+os.Getenv("BERTH_SUITE_PROCS"), "-label-filter="+os.Getenv("BERTH_SUITE_LABELS"),
		"-focus="+os.Getenv("BERTH_SUITE_FOCUS"), "-skip="+os.Getenv("BERTH_SUITE_SKIP"), "-timeout="+os.Getenv("BERTH_SUITE_LIMIT"),
		"-output-dir="+dir, "-json-report=report.json", "-no-color", "-v", "-keep-going", dir+"/e2e.test", "--",
		"--provider=skeleton", "--kubeconfig="+c.admin, "--kubectl-path="+c.module+"/build/bin/kubectl", "--delete-namespace-on-failure")
	cmd.Env = append(os.Environ(), "HOME="+c.dir)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		t.Errorf("the suite: %v; its output is in %s", err, log.Name())
	}
	c.verdicts(dir + "/report.json")
}

// verdicts logs how many tests of the suite came to which end, and why some did not pass.
func (c *cluster) verdicts(file string) {
	c.t.Helper()
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeText, State     string
			Failure                 struct{ Message string }
		}
	}
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &suites)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	ended := map[string]int{}
	var others []string
	for _, s := range suites {
		for _, r := range s.SpecReports {
			if r.LeafNodeText == "" || r.State == "skipped" && r.Failure.Message == "" {
				continue // not selected
			}
			ended[r.State]++
			if r.State != "passed" {
				others = append(others, fmt.Sprintf("%s: %s %s: %.300s", r.State, strings.Join(r.ContainerHierarchyTexts, " "), r.LeafNodeText, r.Failure.Message))
			}
		}
	}
	slices.Sort(others)
	c.t.Logf("%v\n%s", ended, strings.Join(others, "\n"))
}

// serveImages makes the nodes pull from a registry that has stand-ins of the suite's images, under
// their names: programs that Go's modules have, on Debian where the original is on a distribution.
func (c *cluster) serveImages() {
	t := c.t
	t.Helper()
	reg := testregistry.Start(t, testregistry.Address(c.lan.Address))
	for _, m := range c.members {
		const settings = `mkdir -p "$0" && echo "server = 'http://$1'" > "$0/hosts.toml"`
		if p := m.SpawnInside("sh", "-c", settings, "/etc/containerd/certs.d/registry.k8s.io", reg.Addr); p.Wait() != 0 {
			t.Fatalf("settings of the registry on %s: %s", m.name, p.Output())
		}
	}
	debian, err := tarball.LayerFromFile(c.module+"/build/suite/debian.tar", tarball.WithCompressionLevel(1), tarball.WithCompressedCaching)
	if err != nil {
		t.Fatal(err)
	}
	box, err := testimage.BusyboxLayer()
	if err != nil {
		t.Fatal(err)
	}
	sh := c.layer("suite/bash", "bin/sh", 0o755)
	image := func(cfg v1.Config, layers ...v1.Layer) v1.Image {
		if cfg.Env == nil {
			cfg.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
		}
		img, err := testimage.Image(cfg, layers...)
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	runs := func(program string) v1.Config { return v1.Config{Entrypoint: []string{program}} }
	pause := image(runs("/pause"), c.layer("libexec/pause", "pause", 0o755))
	host := v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}
	web := v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}}
	agnhost := []v1.Layer{
		debian, c.layer("suite/agnhost", "agnhost", 0o755), c.ofAgnhost(pause),
		c.layer("suite/localhost.crt", "localhost.crt", 0o644), c.layer("suite/localhost.key", "localhost.key", 0o644),
	}
	shows := func(name string) v1.Image {
		page := layerOf(t, testimage.File{Name: "data.json", Mode: 0o644, Body: []byte(`{"image": "` + name + `.jpg"}`)},
			testimage.File{Name: name + ".jpg", Mode: 0o644, Body: []byte(name)},
			testimage.File{Name: "etc/os-release", Mode: 0o644, Body: []byte("NAME='a stand-in for Alpine Linux'\n")})
		return image(web, append(slices.Clone(agnhost), page)...)
	}
	nginx := image(v1.Config{Cmd: []string{"nginx", "-g", "daemon off;"}}, debian)
	bash := image(v1.Config{Cmd: []string{"bash"}}, debian)
	for ref, img := range map[string]v1.Image{
		"pause:3.10.2":                               pause,
		"etcd:3.6.8-0":                               image(v1.Config{}, box, c.layer("bin/etcd", "usr/local/bin/etcd", 0o755)),
		"e2e-test-images/agnhost:2.63.0":             image(host, agnhost...),
		"e2e-test-images/agnhost:2.55":               image(host, append(slices.Clone(agnhost), layerOf(t, testimage.File{Name: "older", Mode: 0o644}))...),
		"e2e-test-images/kitten:1.8":                 shows("kitten"),
		"e2e-test-images/nautilus:1.8":               shows("nautilus"),
		"e2e-test-images/nginx:1.15-4":               nginx,
		"e2e-test-images/nginx:1.27-0":               nginx,
		"e2e-test-images/perl:5.26":                  bash,
		"e2e-test-images/ipc-utils:1.4":              bash,
		"e2e-test-images/glibc-dns-testing:2.0.0":    bash,
		"e2e-test-images/busybox:1.36.1-1":           image(v1.Config{Cmd: []string{"sh"}}, box, sh),
		"e2e-test-images/busybox:1.37.0-1":           image(v1.Config{Cmd: []string{"sh"}}, box, sh),
		"e2e-test-images/nonroot:1.5":                image(v1.Config{Cmd: []string{"sh"}, User: "1234"}, box, sh),
		"e2e-test-images/nonewprivs:1.4":             image(v1.Config{Cmd: []string{"nnp"}}, box, c.layer("suite/nonewprivs", "usr/local/bin/nnp", fs.ModeSetuid|fs.ModeSetgid|0o755)),
		"e2e-test-images/regression-issue-74839:1.4": image(runs("/regression-issue-74839"), box, c.layer("suite/regression-issue-74839", "regression-issue-74839", 0o755)),
		"e2e-test-images/sample-apiserver:1.29.2":    image(runs("/sample-apiserver"), box, c.layer("suite/sample-apiserver", "sample-apiserver", 0o755)),
	} {
		reg.Push(ref, img)
	}
}

// layer is one program of build/.
func (c *cluster) layer(program, to string, mode fs.FileMode) v1.Layer {
	c.t.Helper()
	body, err := os.ReadFile(c.module + "/build/" + program)
	if err != nil {
		c.t.Fatalf("%v: run `make test-conformance`", err)
	}
	return layerOf(c.t, testimage.File{Name: to, Mode: mode, Body: body})
}

// ofAgnhost are the files that the image of agnhost has beside its program: the image
// pause:testing, which one of its servers gives to those who have a password, is among them.
func (c *cluster) ofAgnhost(pause v1.Image) v1.Layer {
	c.t.Helper()
	list := []testimage.File{
		{Name: "agnhost-2", Mode: fs.ModeSymlink | 0o777, Target: "agnhost"},
		{Name: "uploads", Mode: fs.ModeDir | 0o777},
	}
	put := func(kind string, d v1.Hash, body []byte, err error) {
		if err != nil {
			c.t.Fatal(err)
		}
		list = append(list, testimage.File{Name: "var/registry/pause/" + kind + "/sha256/" + d.Hex[:2] + "/" + d.Hex + "/data", Mode: 0o644, Body: body})
	}
	manifest, err := pause.RawManifest()
	digest, _ := pause.Digest()
	put("manifests", digest, manifest, err)
	config, err := pause.RawConfigFile()
	name, _ := pause.ConfigName()
	put("blobs", name, config, err)
	layers, _ := pause.Layers()
	for _, l := range layers {
		blob, err := l.Compressed()
		if err != nil {
			c.t.Fatal(err)
		}
		body, err := io.ReadAll(blob)
		digest, _ := l.Digest()
		put("blobs", digest, body, err)
	}
	list = append(list, testimage.File{Name: "var/registry/pause/manifests/testing", Mode: 0o644, Body: []byte(digest.String() + "\n")})
	return layerOf(c.t, list...)
}

// layerOf is a layer with files, each after its directory.
func layerOf(t testing.TB, list ...testimage.File) v1.Layer {
	t.Helper()
	f := &files{}
	for _, file := range list {
		f.add(file)
	}
	return f.layer(t)
}
