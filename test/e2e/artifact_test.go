// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/test/node"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

func model(t *testing.T, blobs ...testimage.Blob) v1.Image {
	t.Helper()
	img, err := testimage.Artifact(testimage.ArtifactConfig{Type: "application/vnd.test.model"}, blobs...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func pulls(t *testing.T, n *node.Node, ref string) (string, error) {
	t.Helper()
	resp, err := n.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	return resp.GetImageRef(), err
}

// linked returns how many files below a directory have the same inode as a blob of that size, and how
// many files have that size.
func linked(t *testing.T, dir string, size int64) (files, links int) {
	t.Helper()
	inodes := map[uint64]int{}
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil // what is removed meanwhile
		}
		if st, err := e.Info(); err == nil && st.Size() == size {
			inodes[st.Sys().(*syscall.Stat_t).Ino]++
			files++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range inodes {
		links = max(links, n)
	}
	return files, links
}

// PROPERTIES 25: an OCI artifact is pulled and mounted as an image is, and was refused. Its files have
// the names of its layers, nobody can change them, a pod with a user namespace sees them as its
// root's, and they outlive its name and berth. They take no room beside its blobs.
func TestAnArtifactIsMountedAsAVolume(t *testing.T) {
	t.Parallel()
	node.Both(t, func(t *testing.T, n *node.Node) {
		if err := os.Chmod(n.Dir, 0o711); err != nil { // for the root of a user namespace
			t.Fatal(err)
		}
		weights := bytes.Repeat([]byte("0123456789abcde\n"), 70001)
		img := model(t,
			testimage.Blob{Title: "weights.bin", Body: weights},
			testimage.Blob{Title: "conf/a.json", MediaType: "application/json", Body: []byte("a\n")},
			testimage.Blob{Title: "conf/deep/b.json", Body: []byte("b\n")},
			testimage.Blob{Title: "layer.tar.gz", MediaType: "application/vnd.oci.image.layer.v1.tar+gzip", Body: []byte("as it is\n")})
		ref := testregistry.Start(t).Push("team/model:1", img)
		id, err := pulls(t, n, ref)
		if err != nil {
			t.Fatal(err)
		}
		if d, err := img.Digest(); err != nil || id != d.String() {
			t.Errorf("its ID is %s, want %v %v", id, d, err)
		}
		list, err := n.Client.Node.Images(t.Context(), &berthv1.ImagesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list.GetImages() {
			if (i.Artifact != "") != (i.Id == id) {
				t.Errorf("%v", i)
			}
			if size := int64(len(weights)); i.Id == id && (i.Disk < size || i.Disk > size*5/4 || i.Frees != i.Disk) {
				t.Errorf("%v takes other than %d bytes", i, size)
			}
		}
		if files, links := linked(t, n.Dir, int64(len(weights))); files != 2 || links != 2 {
			t.Errorf("the blob is %d files, %d of them the same", files, links)
		}

		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		const look = `cd /volume; cat conf/a.json conf/deep/b.json layer.tar.gz; wc -c <weights.bin; find . -type f | sort
			for f in weights.bin conf/a.json new; do (echo x >$f) 2>/dev/null && echo written; done
			chmod 777 weights.bin 2>/dev/null && echo changed; rm -f weights.bin 2>/dev/null && echo removed
			./conf/a.json 2>/dev/null; echo $?; stat -c '%u:%g %a' weights.bin conf`
		want := "a\nb\nas it is\n" + strconv.Itoa(len(weights)) + "\n./conf/a.json\n./conf/deep/b.json\n./layer.tar.gz\n./weights.bin\n126\n0:0 444\n0:0 755\n"
		whole := n.Run(pod, cfg, mountsImage("whole", ref, "", look))
		node.ExpectExit(t, n.Ended(whole), 0, "Completed")
		if got := n.Log(whole); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		sub := n.Run(pod, cfg, mountsImage("sub", ref, "conf/deep", "cat /volume/b.json; ls /volume"))
		node.ExpectExit(t, n.Ended(sub), 0, "Completed")
		if got := n.Log(sub); got != "b\nb.json\n" {
			t.Errorf("a sub path: %q", got)
		}
		mapsCfg := n.PodConfig()
		mapsCfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = mapped()
		mapsPod := n.Pod(mapsCfg)
		inside := n.Run(mapsPod, mapsCfg, inUserns(mountsImage("mapped", ref, "", look), mapsCfg))
		node.ExpectExit(t, n.Ended(inside), 0, "Completed")
		if got := n.Log(inside); got != want {
			t.Errorf("in a user namespace\n%s\nwant\n%s", got, want)
		}

		run := node.ContainerConfig("run", "true")
		run.Image.Image = ref
		_, err = n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: run, SandboxConfig: cfg})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "artifact") {
			t.Errorf("run as an image: %v", err)
		}
		_, err = n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
			PodSandboxId: pod, Config: mountsImage("bad", ref, "absent", "true"), SandboxConfig: cfg,
		})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "ImageVolumeMountFailed") {
			t.Errorf("a sub path that is absent: %v", err)
		}

		stays := n.Run(pod, cfg, mountsImage("stays", ref, "conf",
			"trap 'cat /volume/a.json; exit 0' TERM; echo ready; while :; do sleep 0.05; done"))
		n.Until("ready", func() bool { return n.Log(stays) != "" })
		if _, err := n.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
			t.Fatal(err)
		}
		n.Berth.Kill(syscall.SIGKILL)
		n.StartBerth()
		if m := n.Container(stays).GetMounts()[0]; m.GetImage().GetImageRef() != id || m.GetImage().GetImage() != ref {
			t.Errorf("reported as %v, want %s", m, id)
		}
		if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: stays, Timeout: 30}); err != nil {
			t.Fatal(err)
		}
		if got := n.Log(stays); got != "ready\na\n" {
			t.Errorf("%q", got)
		}
		n.RemoveAll(t.Context())
		n.Until("its bytes are given back", func() bool {
			files, _ := linked(t, n.Dir, int64(len(weights)))
			return files == 0
		})
		n.NoLeaks(t.Context())
	})
}

// PROPERTIES 25: a name of a layer that leads out of the volume is refused before the layer is fetched.
func TestAnArtifactThatLeavesItsVolumeIsRefused(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	reg := testregistry.Start(t)
	for tag, title := range map[string]string{"up": "../../etc/passwd", "absolute": "/etc/passwd", "within": "a/../../b"} {
		_, err := pulls(t, n, reg.Push("team/evil:"+tag, model(t, testimage.Blob{Title: title, Body: []byte("x")})))
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), title) {
			t.Errorf("%s: %v", title, err)
		}
	}
	if list, err := n.Client.Node.Images(t.Context(), &berthv1.ImagesRequest{}); err != nil || len(list.GetImages()) != 1 {
		t.Errorf("%v %v", list, err)
	}
}

// A pull of a large artifact goes on where the connection was cut, as the registry takes ranges.
func TestAPullOfAnArtifactGoesOnAfterACut(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	const size, piece = 8 << 20, 1 << 20
	body := bytes.Repeat([]byte("0123456789abcde\n"), size/16)
	var served, cuts atomic.Int64
	reg := testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, digest.FromBytes(body).String()) {
				next.ServeHTTP(w, r)
				return
			}
			http.ServeContent(&cutting{ResponseWriter: w, left: piece, served: &served, cuts: &cuts}, r, "", time.Time{}, bytes.NewReader(body))
		})
	}))
	ref := reg.Push("team/large:1", model(t, testimage.Blob{Title: "large", Body: body}))
	if _, err := pulls(t, n, ref); err != nil {
		t.Fatal(err)
	}
	if cuts.Load() < 3 || served.Load() > size*3/2 {
		t.Errorf("the registry was cut %d times, and served %d bytes of %d", cuts.Load(), served.Load(), size)
	}
	t.Logf("%d cuts, %d bytes served of %d", cuts.Load(), served.Load(), size)
	cfg := n.PodConfig()
	c := n.Run(n.Pod(cfg), cfg, mountsImage("c", ref, "", "wc -c </volume/large"))
	node.ExpectExit(t, n.Ended(c), 0, "Completed")
	if got := n.Log(c); got != strconv.Itoa(size)+"\n" {
		t.Errorf("%q", got)
	}
}

// PROPERTIES 25: berth is killed in the middle of a large blob, with the containerd inside it or beside
// it. The next pull of the same name fetches the rest alone.
func TestAPullGoesOnAfterAKillOfBerth(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		const size, first = 32 << 20, 8 << 20
		body := bytes.Repeat([]byte("0123456789abcde\n"), size/16)
		var served atomic.Int64
		stuck, killed := make(chan struct{}), make(chan struct{})
		reg := testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, digest.FromBytes(body).String()) {
					next.ServeHTTP(w, r)
					return
				}
				select {
				case <-killed:
					http.ServeContent(&cutting{ResponseWriter: w, left: size, served: &served, cuts: new(atomic.Int64)}, r, "", time.Time{}, bytes.NewReader(body))
				default:
					w.Header().Set("Content-Length", strconv.Itoa(size))
					_, _ = w.Write(body[:first])
					_ = http.NewResponseController(w).Flush()
					close(stuck)
					select {
					case <-killed:
					case <-r.Context().Done():
					}
				}
			})
		}))
		ref := reg.Push("team/large:1", model(t, testimage.Blob{Title: "large", Body: body}))
		n := node.Start(t, node.Options{External: external})
		go func() {
			_, _ = n.PullImage(context.WithoutCancel(t.Context()), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
		}()
		<-stuck
		n.Until("what was sent is on the disk", func() bool { return ingested(t, n.Dir) == first })
		n.Berth.Kill(syscall.SIGKILL)
		close(killed)
		n.StartBerth()
		if _, err := pulls(t, n, ref); err != nil {
			t.Fatal(err)
		}
		if got := served.Load(); got != size-first {
			t.Errorf("external %v: the registry served %d bytes of %d after the kill, and %d had been there", external, got, size, first)
		}
		if left := ingested(t, n.Dir); left != 0 {
			t.Errorf("%d bytes are left of what was fetched", left)
		}
	})
}

// ingested is how many bytes of the largest blob are there that has not been fetched as a whole.
func ingested(t *testing.T, dir string) (most int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Name() != "data" || filepath.Base(filepath.Dir(filepath.Dir(path))) != "ingest" {
			return nil // what is removed meanwhile
		}
		if st, err := e.Info(); err == nil {
			most = max(most, st.Size())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return most
}

// cutting is an answer whose connection is cut after so many bytes.
type cutting struct {
	http.ResponseWriter
	left         int64
	served, cuts *atomic.Int64
}

// Write writes the next bytes, until none are left.
func (c *cutting) Write(p []byte) (int, error) {
	if int64(len(p)) > c.left {
		n, _ := c.ResponseWriter.Write(p[:c.left])
		c.served.Add(int64(n))
		c.cuts.Add(1)
		panic(http.ErrAbortHandler)
	}
	n, err := c.ResponseWriter.Write(p)
	c.left -= int64(n)
	c.served.Add(int64(n))
	return n, err
}
