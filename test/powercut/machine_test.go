// SPDX-License-Identifier: Apache-2.0

package powercut

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/testimage/testregistry"
)

// PROPERTIES 39: a machine is killed at any instant of pulls and imports. No image that is listed after
// its next boot has a wrong file, and there is no registry that a repair could ask.
//
// test/guest/kills runs this in a virtual machine, which it kills once the test says that it fills the
// disk. The next boot looks at what the one before has left, and fills again.
func TestNoImageIsWrongAfterItsMachineWasKilled(t *testing.T) {
	device := os.Getenv("BERTH_DISK")
	if device == "" {
		t.Skip("it ends with the machine that it runs on: make powercut-guest")
	}
	d := &disk{t: t, dir: node.TempDir(t)}
	t.Cleanup(d.unmount)
	run(t, "mount", device, d.dir)
	n := start(t, d, false)
	dir := t.TempDir()
	list, err := n.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var seen, whole int
	look := func(im image) {
		for _, have := range list.GetImages() {
			for _, ref := range have.GetRepoTags() {
				if !strings.HasSuffix(ref, im.ref) {
					continue
				}
				seen++
				left := im
				left.ref = ref
				switch files, err := wrong(t, n, left); {
				case err != nil && listed(t, n, ref):
					t.Errorf("image %s: %v", ref, err)
				case err != nil: // it was removed, and that is said
				case len(files) > 0:
					t.Errorf("image %s: %d of %d files are wrong: %s", ref, len(files), len(im.files), files[0])
				default:
					whole++
				}
			}
		}
	}
	var images []image
	var archives []func() (ref string)
	for k := range byte(4) {
		name := fmt.Sprintf("/cut%d:1", k)
		im, img := makeImage(t, dir, "localhost"+name, k)
		im.ref = name
		look(im)
		images = append(images, im)
		archives = append(archives, func() string {
			if k%2 == 0 {
				return "localhost" + name
			}
			return testregistry.Start(t).Push(name[1:], img)
		})
	}
	verified(n, d)
	fmt.Printf("looked: %d images were listed, %d of them are whole and %d were removed; %d layers were repaired\n",
		seen, whole, seen-whole, strings.Count(n.Berth.Output(), "a layer was wrong and is unpacked again"))
	for _, have := range list.GetImages() { // the names of a registry that is there no more
		for _, ref := range have.GetRepoTags() {
			if strings.Contains(ref, "/cut") {
				_, _ = n.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
			}
		}
	}
	if t.Failed() || os.Getenv("BERTH_DISK_LAST") != "" {
		return
	}
	refs := make([]string, len(images))
	for k, archive := range archives {
		refs[k] = archive()
	}
	fmt.Println("filling")
	for !t.Failed() { // until the machine is killed
		var wg sync.WaitGroup
		for k, ref := range refs {
			wg.Go(func() {
				spec := &runtimeapi.ImageSpec{Image: ref}
				var err error
				if k%2 == 0 {
					_, err = n.Import(t.Context(), images[k].archive, "")
				} else {
					_, err = n.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: spec})
				}
				if err == nil && k > 1 { // the others stay, and are made durable
					_, err = n.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: spec})
				}
				if err != nil {
					t.Errorf("%s: %v", ref, err)
				}
			})
		}
		wg.Wait()
	}
}
