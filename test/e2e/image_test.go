// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/rand"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/test/node"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

func TestImagesArePulledListedAndRemoved(t *testing.T) {
	t.Parallel()
	node.Both(t, func(t *testing.T, n *node.Node) {
		ctx := t.Context()
		img, err := testimage.Busybox()
		if err != nil {
			t.Fatal(err)
		}
		digest, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		reg := testregistry.Start(t)
		ref := reg.Push("team/app:1", img)
		pull := func(ref string, auth *runtimeapi.AuthConfig) (string, error) {
			resp, err := n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}, Auth: auth})
			return resp.GetImageRef(), err
		}
		ids := make([]string, 5)
		var wg sync.WaitGroup
		for i := range ids { // at once: one pull
			wg.Go(func() {
				var err error
				if ids[i], err = pull(ref, nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		manifests := 0
		for _, r := range reg.Requests() {
			if r.Method == http.MethodGet && strings.Contains(r.Path, "/manifests/") {
				manifests++
			}
		}
		if manifests > 1 {
			t.Errorf("the manifest was fetched %d times for %d callers", manifests, len(ids))
		}
		repo := ref[:strings.LastIndex(ref, ":")]
		byDigest := repo + "@" + digest.String()
		if id, err := pull(byDigest, nil); err != nil || id != ids[0] {
			t.Errorf("by digest: %s %v", id, err)
		}
		st, err := n.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ids[0]}})
		if err != nil || st.GetImage().GetId() != ids[0] || st.GetImage().GetSize() == 0 || !contains(st.GetImage().GetRepoDigests(), byDigest) || !contains(st.GetImage().GetRepoTags(), ref) {
			t.Errorf("%v %v", st, err)
		}
		if _, err := pull(repo+":absent", nil); status.Code(err) != codes.NotFound {
			t.Errorf("absent tag: %v", err)
		}
		if _, err := pull("team/UPPER:1", nil); status.Code(err) != codes.InvalidArgument {
			t.Errorf("bad reference: %v", err)
		}
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		c := node.ContainerConfig("c", "true")
		c.Image.Image = byDigest
		node.ExpectExit(t, n.Ended(n.Run(pod, cfg, c)), 0, "Completed")
		// A person takes one name away, and not an image that a container uses.
		for _, tt := range []struct{ arg, says string }{
			{ids[0], "use force"},
			{ref, "stays, as " + node.Busybox},
			{ref, "is not on this node"},
			{node.Busybox, "is used by"},
		} {
			out, _ := n.Command("images", "rm", tt.arg).CombinedOutput()
			if !strings.Contains(string(out), tt.says) {
				t.Errorf("images rm %s: %s", tt.arg, out)
			}
		}
		if out, err := n.Command("timeline", "--node").Output(); err != nil || !strings.Contains(string(out), "names of an image removed") || !strings.Contains(string(out), "by=berth[") {
			t.Errorf("the removal is not in the history: %s %v", out, err)
		}
		for range 2 {
			if _, err := n.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ids[0]}}); err != nil {
				t.Error(err)
			}
		}
		// It is the image that is removed, under whichever name: also the one that it was imported
		// with.
		if st, err := n.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil || st.GetImage() != nil {
			t.Errorf("%v %v", st, err)
		}
		if st, err := n.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: node.Busybox}}); err != nil || st.GetImage() != nil {
			t.Errorf("%v %v", st, err)
		}
		if fs, err := n.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{}); err != nil || len(fs.GetImageFilesystems()) != 1 || fs.GetImageFilesystems()[0].GetFsId().GetMountpoint() == "" {
			t.Errorf("%v %v", fs, err)
		}
	})
}

func TestCredentialsOpenTheRegistryTheyAreFor(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	img, err := testimage.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	reg := testregistry.Start(t, testregistry.BasicAuth("me", "secret"))
	ref := reg.Push("private/app:1", img)
	pull := func(auth *runtimeapi.AuthConfig) error {
		_, err := n.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}, Auth: auth})
		return err
	}
	if err := pull(nil); err == nil {
		t.Error("pulled without credentials")
	}
	if err := pull(&runtimeapi.AuthConfig{Username: "me", Password: "wrong"}); err == nil {
		t.Error("pulled with wrong credentials")
	}
	if err := pull(&runtimeapi.AuthConfig{Username: "me", Password: "secret", ServerAddress: "registry.example"}); err == nil {
		t.Error("credentials for another registry were sent to this one")
	}
	if err := pull(&runtimeapi.AuthConfig{Username: "me", Password: "secret"}); err != nil {
		t.Error(err)
	}
}

// Credentials of the configuration open a registry for requests without any, and nobody reads them
// from the service.
func TestCredentialsOfTheConfigurationAreUsedAndNotShown(t *testing.T) {
	t.Parallel()
	reg := testregistry.Start(t, testregistry.BasicAuth("me", "geheim"))
	config := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(config, []byte("[image.auth.'"+reg.Addr+"']\nusername = 'me'\npassword = 'geheim'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := node.Start(t, node.Options{Args: []string{"--config", config}})
	img, err := testimage.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	image := &runtimeapi.ImageSpec{Image: reg.Push("private/app:1", img)}
	if _, err := n.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: image, Auth: &runtimeapi.AuthConfig{Username: "me", Password: "wrong"}}); err == nil {
		t.Error("the credentials of the request were not the ones that counted")
	}
	if _, err := n.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: image}); err != nil {
		t.Error(err)
	}
	st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
	if err != nil || strings.Contains(st.String(), "geheim") || strings.Contains(n.Berth.Output(), "geheim") {
		t.Errorf("the password is shown, or %v", err)
	}
}

func TestDockerArchivesAreImported(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	img, err := testimage.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	path := n.Dir + "/docker.tar"
	if err := testimage.WriteDockerArchive(path, "localhost/docker:1", img); err != nil {
		t.Fatal(err)
	}
	in, err := n.Import(t.Context(), path, "")
	if err != nil || len(in.GetNames()) != 1 || in.GetNames()[0] != "localhost/docker:1" || len(in.GetLeftOut()) != 0 {
		t.Fatalf("%v %v", in, err)
	}
	if _, err := n.Import(t.Context(), n.Dir+"/absent.tar", ""); status.Code(err) != codes.NotFound {
		t.Errorf("%v", err)
	}
}

// An archive whose layer cannot be unpacked took the name of a good image, and no pod could be made
// of it. The name is as skopeo writes it, which was not found again: PROPERTIES 58.
func TestABadArchiveTakesNoName(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	good, err := testimage.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	bad, err := testimage.Image(v1.Config{}, static.NewLayer([]byte(strings.Repeat("not a tar ", 1000)), types.OCIUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	for name, img := range map[string]v1.Image{"good.tar": good, "bad.tar": bad} {
		if err := testimage.WriteOCIArchive(filepath.Join(n.Dir, name), "bbx:latest", img); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := n.Command("import", n.Dir+"/good.tar").CombinedOutput(); err != nil || !strings.Contains(string(out), "docker.io/library/bbx:latest") {
		t.Fatalf("%s%v", out, err)
	}
	if out, err := n.Command("import", n.Dir+"/bad.tar").CombinedOutput(); err == nil {
		t.Errorf("a layer that is not a tar was imported: %s", out)
	}
	cfg := n.PodConfig()
	c := node.ContainerConfig("c", "sh", "-c", "exit 7")
	c.Image = &runtimeapi.ImageSpec{Image: "bbx:latest"}
	if st := n.Ended(n.Run(n.Pod(cfg), cfg, c)); st.GetExitCode() != 7 {
		t.Errorf("the good image ended with %d: %s", st.GetExitCode(), st.GetMessage())
	}
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

// A pull says in bytes how far it has come, also when the registry stands still.
func TestAPullSaysHowFarItHasCome(t *testing.T) {
	t.Parallel()
	node.Both(t, func(t *testing.T, n *node.Node) {
		release := make(chan struct{})
		reg := testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
					next.ServeHTTP(w, r)
					return
				}
				answer := httptest.NewRecorder()
				next.ServeHTTP(answer, r)
				maps.Copy(w.Header(), answer.Header())
				w.WriteHeader(answer.Code)
				if half := answer.Body.Len() / 2; half > 64<<10 { // a layer: the configuration comes before them
					_, _ = w.Write(answer.Body.Next(half))
					_ = http.NewResponseController(w).Flush()
					select {
					case <-release:
					case <-r.Context().Done():
					}
				}
				_, _ = w.Write(answer.Body.Bytes())
			})
		}))
		img, err := testimage.Busybox()
		if err != nil {
			t.Fatal(err)
		}
		padding := make([]byte, 8<<20) // containerd writes a MiB at a time; the other layer is on the node
		_, _ = rand.Read(padding)
		layer, err := testimage.Layer(testimage.File{Name: "padding", Mode: 0o600, Body: padding})
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			t.Fatal(err)
		}
		size, err := layer.Size()
		if err != nil {
			t.Fatal(err)
		}
		ref := reg.Push("team/app:1", img)
		done := make(chan error, 1)
		go func() {
			_, err := n.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
			done <- err
		}()
		defer func() {
			close(release)
			if err := <-done; err != nil {
				t.Error(err)
			}
			if p, err := n.Client.Node.PullProgress(t.Context(), &berthv1.PullProgressRequest{Image: ref}); err != nil || p.GetProgress() != nil {
				t.Errorf("after the pull: %v %v", p, err)
			}
		}()
		n.Until("half of what was missing is here", func() bool {
			resp, err := n.Client.Node.PullProgress(t.Context(), &berthv1.PullProgressRequest{Image: ref})
			if err != nil {
				t.Fatal(err)
			}
			p := resp.GetProgress()
			if p.GetTotal() < size {
				return false
			}
			missing := p.Total - p.Fetched
			return missing >= size/2 && missing < size && p.Complete > 0 && p.Complete < p.Blobs
		})
	})
}
