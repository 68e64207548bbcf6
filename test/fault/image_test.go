// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/testimage"
)

// berth, or containerd, is killed while images are mounted to be read, which volumes of images are
// for each container: no mount, lease or snapshot is left of it.
func TestImagesThatAreReadLeaveNothingAfterAKill(t *testing.T) {
	both(t, quick, func(t *testing.T, n *node.Node, _ *faults) {
		rnd := seeded(t)
		const ref = "localhost/volume:1"
		importVolume(t, n, ref)
		for round := range times(t, 4) {
			cfg := n.PodConfig()
			pod := n.Pod(cfg)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for w := range 3 {
				wg.Go(func() {
					for i := 0; ctx.Err() == nil; i++ {
						c := node.ContainerConfig(fmt.Sprintf("c%d-%d", w, i), "true")
						c.Image.Image = ref
						_, _ = n.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, SandboxConfig: cfg, Config: c})
					}
				})
			}
			time.Sleep(time.Duration(rnd.Int64N(int64(200 * time.Millisecond))))
			victim := n.Berth
			if n.Containerd != nil && round%2 == 0 {
				victim = n.Containerd
			}
			victim.Kill(syscall.SIGKILL)
			cancel()
			wg.Wait()
			if victim == n.Berth {
				n.StartBerth()
			} else {
				n.StartContainerd()
				n.Until("berth is connected again", n.Connected)
			}
			n.RemoveAll(t.Context())
			n.NoLeaks(t.Context())
			if t.Failed() {
				t.FailNow()
			}
		}
	})
}

// importVolume imports an image with a volume that has something in it.
func importVolume(t *testing.T, n *node.Node, ref string) {
	t.Helper()
	base, err := testimage.BusyboxLayer()
	if err != nil {
		t.Fatal(err)
	}
	top, err := testimage.Layer(testimage.File{Name: "data/file", Mode: 0o644, Body: make([]byte, 1<<20)})
	if err != nil {
		t.Fatal(err)
	}
	img, err := testimage.Image(v1.Config{Volumes: map[string]struct{}{"/data": {}}}, base, top)
	if err != nil {
		t.Fatal(err)
	}
	path := n.Dir + "/volume.tar"
	if err := testimage.WriteOCIArchive(path, ref, img); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Import(t.Context(), path, ""); err != nil {
		t.Fatal(err)
	}
}
