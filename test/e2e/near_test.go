// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"google.golang.org/protobuf/types/known/durationpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/test/node"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// small is an image that no test runs, which differs from others by a text.
func small(t *testing.T, text string) v1.Image {
	t.Helper()
	layer, err := testimage.Layer(testimage.File{Name: "text", Mode: 0o600, Body: []byte(strings.Repeat(text, 1<<14))})
	if err != nil {
		t.Fatal(err)
	}
	img, err := testimage.Image(v1.Config{}, layer)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// Archives in a directory are there without a registry, run, and are imported once. One that is bad
// is named and holds up no other. Pins and the directory follow a reload, and pruning leaves what
// is pinned or used.
func TestImagesAreNearWithoutARegistry(t *testing.T) {
	t.Parallel()
	dir := node.TempDir(t)
	archives := filepath.Join(dir, "archives")
	if err := os.Mkdir(archives, 0o755); err != nil {
		t.Fatal(err)
	}
	img, err := testimage.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(dir, "plain.tar")
	if err := testimage.WriteDockerArchive(plain, "registry.invalid/team/app:1", img); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(plain)
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"app.tar.gz": packed.Bytes(), "a-bad.tar": b[:len(b)/2]} {
		if err := os.WriteFile(filepath.Join(archives, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := testimage.WriteOCIArchive(filepath.Join(archives, "other.tar"), "registry.invalid/team/other:1", small(t, "other")); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config.toml")
	configure := func(text string) {
		t.Helper()
		if err := os.WriteFile(config, []byte("[image]\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	configure("preload_dir = '" + archives + "'\n")
	n := node.Start(t, node.Options{Args: []string{"--config", config}})
	tags := func(keep func(*berthv1.Image) bool) (tags []string) {
		t.Helper()
		list, err := n.Client.Node.Images(t.Context(), &berthv1.ImagesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list.GetImages() {
			if keep(i) {
				tags = append(tags, i.RepoTags...)
			}
		}
		slices.Sort(tags)
		return tags
	}
	pinned := func(i *berthv1.Image) bool { return i.Pinned }
	expect := func(what string, keep func(*berthv1.Image) bool, want ...string) {
		t.Helper()
		n.Until(what, func() bool { return slices.Equal(tags(keep), want) })
	}
	// The test has imported the same image under another name.
	expect("the images are here and pinned", pinned, node.Busybox, "registry.invalid/team/app:1", "registry.invalid/team/other:1")
	st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
	if err != nil || !strings.Contains(st.GetInfo()["warnings"], "a-bad.tar") {
		t.Errorf("%v %v", st.GetInfo()["warnings"], err)
	}
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	c := node.ContainerConfig("c", "echo", "hello")
	c.Image.Image = "registry.invalid/team/app:1"
	node.ExpectExit(t, n.Ended(n.Run(pod, cfg, c)), 0, "Completed")
	imports := func() int { return strings.Count(n.Berth.Output(), "archive is imported") }
	if got := imports(); got != 2 {
		t.Errorf("%d archives were imported", got)
	}
	n.Berth.Kill(syscall.SIGKILL)
	n.StartBerth()
	expect("the images are pinned again", pinned, node.Busybox, "registry.invalid/team/app:1", "registry.invalid/team/other:1")
	n.Until("the bad archive was tried again", func() bool { return strings.Contains(n.Berth.Output(), "images cannot be preloaded") })

	reg := testregistry.Start(t)
	kept, dropped := reg.Push("team/kept:1", small(t, "kept")), reg.Push("team/dropped:1", small(t, "dropped"))
	for _, ref := range []string{kept, dropped} {
		if _, err := n.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
			t.Fatal(err)
		}
	}
	configure("pinned = ['*/kept:*']\n") // and no archives
	n.Berth.Signal(syscall.SIGHUP)
	expect("the new settings hold", pinned, kept)
	if got := imports(); got != 0 {
		t.Errorf("%d archives were imported by the second start", got)
	}
	list, err := n.Client.Node.Images(t.Context(), &berthv1.ImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list.GetImages() {
		used := slices.Contains(i.RepoTags, node.Busybox)
		if i.Disk < 1<<14 || i.Created == nil || used != slices.Equal(i.Users, []string{cfg.GetMetadata().GetNamespace() + "/" + cfg.GetMetadata().GetName() + "/c"}) {
			t.Errorf("%v", i)
		}
	}
	df, err := n.Client.Node.Disk(t.Context(), &berthv1.DiskRequest{})
	if err != nil || df.Path == "" || df.Total == 0 || len(df.Shares) != 8 {
		t.Errorf("%v %v", df, err)
	}
	for _, s := range df.Shares {
		if (s.Bytes == 0) != (s.What == "pulls" || s.What == "profiles") { // none was cut off, and there are no profiles
			t.Errorf("%v", s)
		}
	}
	dry, err := n.Control.PruneImages(t.Context(), &berthv1.PruneImagesRequest{DryRun: true, OlderThan: durationpb.New(0)})
	if err != nil || len(dry.Images) != 2 || dry.Bytes == 0 || dry.Used != 1 || dry.Pinned != 1 {
		t.Errorf("%v %v", dry, err)
	}
	if young, err := n.Control.PruneImages(t.Context(), &berthv1.PruneImagesRequest{OlderThan: durationpb.New(1 << 40)}); err != nil || len(young.Images) != 0 || young.Young != 2 {
		t.Errorf("%v %v", young, err)
	}
	done, err := n.Control.PruneImages(t.Context(), &berthv1.PruneImagesRequest{OlderThan: durationpb.New(0)})
	if err != nil || done.Bytes != dry.Bytes || len(done.Images) != 2 {
		t.Errorf("%v %v", done, err)
	}
	expect("what is used or pinned stays", func(*berthv1.Image) bool { return true }, append([]string{kept}, node.Busybox, "registry.invalid/team/app:1")...)
}

// A pull for a pod is listed with the pod that waits for it, while it lasts. Where compressed
// layers are discarded, what was pulled runs all the same.
func TestAPullIsListedWithThePodThatWaits(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		n := node.Start(t, node.Options{External: external, Args: []string{"--set", "image.discard_blobs=true"}})
		release := make(chan struct{})
		reg := testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
					select {
					case <-release:
					case <-r.Context().Done():
					}
				}
				next.ServeHTTP(w, r)
			})
		}))
		img, err := testimage.Busybox()
		if err != nil {
			t.Fatal(err)
		}
		ref := reg.Push("team/app:1", img)
		if _, err := n.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: node.Busybox}}); err != nil {
			t.Fatal(err)
		}
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		done := make(chan error, 1)
		go func() {
			_, err := n.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}, SandboxConfig: cfg})
			done <- err
		}()
		n.Until("the pull is listed", func() bool {
			resp, err := n.Client.Node.Transfers(t.Context(), &berthv1.TransfersRequest{})
			list := resp.GetTransfers()
			return err == nil && len(list) == 1 && list[0].Image == ref && list[0].Kind == "pull" && list[0].Total > 0 &&
				slices.Equal(list[0].Waiters, []string{cfg.GetMetadata().GetNamespace() + "/" + cfg.GetMetadata().GetName()})
		})
		close(release)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if line, err := n.Timeline(t.Context(), pod); err != nil || !strings.Contains(line, "pull began") || !strings.Contains(line, "image pulled") {
			t.Errorf("%s %v", line, err)
		}
		if list, err := n.Client.Node.Transfers(t.Context(), &berthv1.TransfersRequest{}); err != nil || len(list.GetTransfers()) != 0 {
			t.Errorf("%v %v", list, err)
		}
		c := node.ContainerConfig("c", "true")
		c.Image.Image = ref
		node.ExpectExit(t, n.Ended(n.Run(pod, cfg, c)), 0, "Completed")
		resp, err := n.Client.Node.Images(t.Context(), &berthv1.ImagesRequest{})
		list := resp.GetImages()
		if err != nil || len(list) != 1 {
			t.Fatalf("%v %v", list, err)
		}
		if list[0].Size < 1<<18 || list[0].Disk < int64(list[0].Size) {
			t.Errorf("%v", list[0])
		}
	})
}
