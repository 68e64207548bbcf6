// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/testimage"
)

// A path reaches containerd, the OCI runtime, mounts, logs and the records as it is, whatever its
// characters: of volumes, of images as volumes and of paths within them, of the volumes of an
// image, of a container's working directory, of logs, of archives that are preloaded, and of
// berth's own directories, unless the settings refuse it (config.TestCheckFindsWhatCannotWork): a
// root with a colon gave pods whose layers were "missing".
func TestAPathMayHaveEveryCharacter(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		odd := []string{"a:b", "a,b", `a\b`, `a\040b`, "a%2fb%s", " a b ", `a'b"c`, "é", "a\nb", "a#b?c=d&e", "$a;b`*[x]{y}", "a|b", "-a", "a..b"}
		dir := filepath.Join(node.TempDir(t), "é '$;`*[]{}=&@")
		data := t.TempDir()
		archives := filepath.Join(data, `a:b,c\d%2f#`)
		var files []testimage.File
		volumes := map[string]struct{}{}
		for i, part := range odd {
			volumes["/of/"+part] = struct{}{}
			files = append(files, testimage.File{Name: "of/" + part, Mode: fs.ModeDir | 0o755},
				testimage.File{Name: "of/" + part + "/f", Mode: 0o644, Body: fmt.Appendf(nil, "image %d\n", i)})
			if err := os.Mkdir(filepath.Join(data, part), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(data, part, "f"), fmt.Appendf(nil, "host %d\n", i), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		base, err := testimage.BusyboxLayer()
		if err != nil {
			t.Fatal(err)
		}
		layer, err := testimage.Layer(files...)
		if err != nil {
			t.Fatal(err)
		}
		img, err := testimage.Image(v1.Config{Volumes: volumes, WorkingDir: "/of/" + odd[1]}, base, layer)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range []string{dir, archives} {
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		const name = "localhost/paths:latest"
		if err := testimage.WriteOCIArchive(filepath.Join(archives, "a%s:b.tar"), name, img); err != nil {
			t.Fatal(err)
		}
		n := node.Start(t, node.Options{Dir: dir, External: external, Args: []string{"--set", `image.preload_dir='` + archives + `'`}})
		n.Until("the archive is preloaded", func() bool {
			st, err := n.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
			return err == nil && st.GetImage() != nil
		})
		cfg := n.PodConfig()
		cfg.LogDirectory = filepath.Join(data, "logs", strings.Join(odd[:8], ""))
		pod := n.Pod(cfg)
		c := node.ContainerConfig("c", "sh", "-c", `cat /host/*/f /read/*/f /part/*/f; for d in /of/*; do cat "$d/f"; done; pwd`)
		c.Image.Image, c.LogPath = name, `a:b,c\d%s.log`
		for _, part := range odd {
			c.Mounts = append(c.Mounts,
				&runtimeapi.Mount{HostPath: filepath.Join(data, part), ContainerPath: "/host/" + part},
				&runtimeapi.Mount{HostPath: filepath.Join(data, part), ContainerPath: "/read/" + part, Readonly: true},
				&runtimeapi.Mount{ContainerPath: "/part/" + part, Readonly: true, Image: &runtimeapi.ImageSpec{Image: name}, ImageSubPath: "of/" + part})
		}
		id := n.Run(pod, cfg, c)
		node.ExpectExit(t, n.Ended(id), 0, "Completed")
		b, err := os.ReadFile(filepath.Join(cfg.LogDirectory, c.LogPath))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int{}
		for line := range strings.Lines(string(b)) {
			_, text, _ := strings.Cut(strings.TrimSpace(line), " F ")
			got[text]++
		}
		for i := range odd {
			if h, m := got[fmt.Sprintf("host %d", i)], got[fmt.Sprintf("image %d", i)]; h != 2 || m != 2 {
				t.Errorf("%q is at %d of 2 paths of the host's and %d of 2 of the image's", odd[i], h, m)
			}
		}
		if got["/of/"+odd[1]] != 1 {
			t.Errorf("the working directory is not that of the image: %q", b)
		}
	})
}
