// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/test/command"
	"berth/test/testimage"
)

// ofControl are the programs of the control plane, and ofNode those that any node may have to run.
// Each is an image of its own.
var (
	ofControl = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
	ofNode    = []string{"kube-proxy", "coredns"}
)

// repository is where the images seem to come from.
const repository = "localhost/berth-cluster/"

// image is the name of the image of a program. All have the version of Kubernetes.
func image(program string) string { return repository + program + ":" + version() }

// version is the version of Kubernetes, as tools/lab/kubelet pins it.
var version = sync.OnceValue(func() string {
	b, err := os.ReadFile("../../tools/lab/kubelet/go.mod")
	if err != nil {
		panic(err)
	}
	m := regexp.MustCompile(`k8s\.io/kubernetes (v\S+)`).FindSubmatch(b)
	if m == nil {
		panic("tools/lab/kubelet/go.mod has no k8s.io/kubernetes")
	}
	return string(m[1])
})

// archive returns the path of an archive with the image of a program that was built. It stays in
// build/cluster for the next time.
func archive(t testing.TB, module, program string) string {
	t.Helper()
	from, to := module+"/build/bin/"+program, module+"/build/cluster/"+program+".tar"
	built, err := os.Stat(from)
	if err != nil {
		t.Fatalf("%v: run `make test-cluster`", err)
	}
	if made, err := os.Stat(to); err == nil && made.ModTime().After(built.ModTime()) {
		return to
	}
	body, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	var layers []v1.Layer
	if program == "kube-proxy" {
		layers = append(layers, iptables(t))
	}
	f := &files{}
	f.add(testimage.File{Name: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777})
	f.add(testimage.File{Name: "usr/local/bin/" + program, Mode: 0o755, Body: body})
	layers = append(layers, f.layer(t))
	img, err := testimage.Image(v1.Config{
		Env:        []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin"},
		Entrypoint: []string{"/usr/local/bin/" + program},
	}, layers...)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := testimage.WriteOCIArchive(to, image(program), img); err != nil {
		t.Fatal(err)
	}
	return to
}

// files are the files of a layer, in order, each after its directory.
type files struct {
	list []testimage.File
	seen map[string]bool
}

func (f *files) add(file testimage.File) {
	if f.seen == nil {
		f.seen = map[string]bool{".": true}
	}
	if f.seen[file.Name] {
		return
	}
	if dir := path.Dir(file.Name); !f.seen[dir] {
		f.add(testimage.File{Name: dir, Mode: fs.ModeDir | 0o755})
	}
	f.seen[file.Name] = true
	f.list = append(f.list, file)
}

func (f *files) layer(t testing.TB) v1.Layer {
	t.Helper()
	layer, err := testimage.Layer(f.list...)
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

// iptables returns the iptables of this host, which kube-proxy calls: the program, its extensions,
// and their libraries.
func iptables(t testing.TB) v1.Layer {
	t.Helper()
	found, err := exec.LookPath("iptables")
	if err != nil {
		t.Fatalf("%v: run `make setup`", err)
	}
	program, err := filepath.EvalSymlinks(found)
	if err != nil {
		t.Fatal(err)
	}
	extensions, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err != nil || len(extensions) == 0 {
		t.Fatalf("no extensions of iptables: %v", err)
	}
	f := &files{}
	add := func(from, to string) {
		body, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		f.add(testimage.File{Name: strings.TrimPrefix(to, "/"), Mode: 0o755, Body: body})
	}
	multi := "/usr/sbin/" + filepath.Base(program)
	add(program, multi)
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		f.add(testimage.File{Name: "usr/sbin/" + name, Mode: fs.ModeSymlink | 0o777, Target: filepath.Base(multi)})
	}
	f.add(testimage.File{Name: "run", Mode: fs.ModeDir | 0o755})
	for _, e := range extensions {
		add(e, e)
	}
	out, err := command.New(t, "ldd", append([]string{program}, extensions...)...).Output()
	if err != nil {
		t.Fatalf("ldd: %v", err)
	}
	for _, m := range regexp.MustCompile(`(?m)^\s+(?:\S+ => )?(/\S+) \(0x`).FindAllStringSubmatch(string(out), -1) {
		add(m[1], m[1])
	}
	return f.layer(t)
}
