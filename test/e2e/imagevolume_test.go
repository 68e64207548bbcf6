// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"io/fs"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/testimage"
)

const volumeImage = "localhost/volume:latest"

// importVolume imports an image of two layers, with links that point out of it.
func importVolume(t *testing.T, n *node.Node) (id string) {
	t.Helper()
	base, err := testimage.BusyboxLayer()
	if err != nil {
		t.Fatal(err)
	}
	data, err := testimage.Layer(
		testimage.File{Name: "data", Mode: fs.ModeDir | 0o755},
		testimage.File{Name: "data/hostname", Mode: 0o644, Body: []byte("of the image\n")},
		testimage.File{Name: "up", Mode: fs.ModeSymlink | 0o777, Target: "../../../../../../data"},
		testimage.File{Name: "absolute", Mode: fs.ModeSymlink | 0o777, Target: "/data"},
		testimage.File{Name: "device", Mode: fs.ModeDevice | fs.ModeCharDevice | 0o666, Major: 1, Minor: 5},
	)
	if err != nil {
		t.Fatal(err)
	}
	return importLayers(t, n, volumeImage, base, data)
}

// importOneLayer imports an image of one layer: the snapshotter returns a bind mount for it, and an
// overlay for several.
func importOneLayer(t *testing.T, n *node.Node) (id string) {
	t.Helper()
	data, err := testimage.Layer(
		testimage.File{Name: "data", Mode: fs.ModeDir | 0o700},
		testimage.File{Name: "data/hostname", Mode: 0o600, Body: []byte("of the image\n")},
		testimage.File{Name: "device", Mode: fs.ModeDevice | fs.ModeCharDevice | 0o666, Major: 1, Minor: 5},
	)
	if err != nil {
		t.Fatal(err)
	}
	return importLayers(t, n, "localhost/one-layer:latest", data)
}

func importLayers(t *testing.T, n *node.Node, name string, layers ...v1.Layer) (id string) {
	t.Helper()
	img, err := testimage.Image(v1.Config{}, layers...)
	if err != nil {
		t.Fatal(err)
	}
	path := n.Dir + "/volume.tar"
	if err := testimage.WriteOCIArchive(path, name, img); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Import(t.Context(), path, ""); err != nil {
		t.Fatal(err)
	}
	st, err := n.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	if err != nil {
		t.Fatal(err)
	}
	return st.GetImage().GetId()
}

func mountsImage(name, image, sub string, script string) *runtimeapi.ContainerConfig {
	c := node.ContainerConfig(name, "sh", "-c", script)
	c.Mounts = []*runtimeapi.Mount{{
		ContainerPath: "/volume",
		Readonly:      true,
		Image:         &runtimeapi.ImageSpec{Image: image},
		ImageSubPath:  sub,
	}}
	return c
}

// PROPERTIES 25: an image that is mounted as a volume is there as a whole or by a path within it,
// read-only; it can be executed from, and neither its devices nor its set-user-ID bits mean
// anything. Links in it end in it: CVE-2022-23648.
func TestAnImageIsMountedAsAVolume(t *testing.T) {
	t.Parallel()
	node.Both(t, func(t *testing.T, n *node.Node) {
		image := importVolume(t, n)
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		whole := n.Run(pod, cfg, mountsImage("whole", image, "", `cat /volume/data/hostname
			(echo x >/volume/x) 2>/dev/null || echo read-only
			(cat /volume/device) 2>/dev/null || echo no device
			/volume/bin/busybox echo executable
			grep ' /volume ' /proc/self/mountinfo | cut -d' ' -f6`))
		node.ExpectExit(t, n.Ended(whole), 0, "Completed")
		got := n.Log(whole)
		if !strings.HasPrefix(got, "of the image\nread-only\nno device\nexecutable\n") {
			t.Errorf("%q", got)
		}
		for _, o := range []string{"ro", "nosuid", "nodev"} {
			if !strings.Contains(","+got[strings.LastIndex(strings.TrimSpace(got), "\n")+1:], o) {
				t.Errorf("it is not mounted %s: %q", o, got)
			}
		}
		one := n.Run(pod, cfg, mountsImage("one-layer", importOneLayer(t, n), "", `cat /volume/data/hostname
			(echo x >/volume/x) 2>/dev/null || echo read-only
			(cat /volume/device) 2>/dev/null || echo no device`))
		node.ExpectExit(t, n.Ended(one), 0, "Completed")
		if got, want := n.Log(one), "of the image\nread-only\nno device\n"; got != want {
			t.Errorf("an image of one layer: %q, want %q", got, want)
		}
		for _, sub := range []string{"data", "up", "absolute"} {
			id := n.Run(pod, cfg, mountsImage("sub-"+sub, image, sub, "cat /volume/hostname"))
			node.ExpectExit(t, n.Ended(id), 0, "Completed")
			if got := n.Log(id); got != "of the image\n" {
				t.Errorf("%s: %q", sub, got)
			}
		}
		for sub, code := range map[string]codes.Code{"absent": codes.InvalidArgument, "data/hostname": codes.InvalidArgument, "../x": codes.InvalidArgument} {
			_, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
				PodSandboxId: pod, Config: mountsImage("bad", image, sub, "true"), SandboxConfig: cfg,
			})
			if status.Code(err) != code || !strings.Contains(err.Error(), sub) {
				t.Errorf("%s: %v", sub, err)
			}
		}
		_, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
			PodSandboxId: pod, Config: mountsImage("bad", "localhost/absent:1", "", "true"), SandboxConfig: cfg,
		})
		if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "ImageVolumeMountFailed") {
			t.Error(err)
		}
	})
}

// PROPERTIES 25: the layers of a mounted image stay when the image is removed, and through a kill
// -9 of berth; the status says which image it was. Everything is given back with the container.
func TestAMountedImageOutlivesItsNameAndBerth(t *testing.T) {
	t.Parallel()
	node.Both(t, func(t *testing.T, n *node.Node) {
		image := importVolume(t, n)
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		id := n.Run(pod, cfg, mountsImage("c", volumeImage, "data",
			"trap 'cat /volume/hostname; exit 0' TERM; echo ready; while :; do sleep 0.05; done"))
		n.Until("ready", func() bool { return n.Log(id) != "" })
		if _, err := n.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: volumeImage}}); err != nil {
			t.Fatal(err)
		}
		n.Berth.Kill(syscall.SIGKILL)
		n.StartBerth()
		if m := n.Container(id).GetMounts()[0]; m.GetImage().GetImageRef() != image || m.GetImage().GetImage() != volumeImage {
			t.Errorf("reported as %v, want %s", m, image)
		}
		if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 30}); err != nil {
			t.Fatal(err)
		}
		if got := n.Log(id); got != "ready\nof the image\n" {
			t.Errorf("%q", got)
		}
		n.RemoveAll(t.Context())
		n.NoLeaks(t.Context())
	})
}
