// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"berth/internal/images/image"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// A layer of 32 KiB made berth hold a gibibyte, whom the OOM killer spares, and three layers are
// unpacked at a time. PROPERTIES 12, PROPERTIES 38.
func TestALayerDoesNotDecideHowMuchMemoryBerthUses(t *testing.T) {
	i, _ := parallelStore(t)
	for name, mediaType := range map[string]types.MediaType{
		"zstd":            "application/vnd.oci.image.layer.v1.tar+zstd",
		"said to be gzip": types.OCILayer,
	} {
		t.Run(name, func(t *testing.T) {
			var layers []v1.Layer
			for n := range 3 {
				layers = append(layers, static.NewLayer(testimage.ZstdZeros(29, 1<<30+n<<20), mediaType))
			}
			img, err := testimage.Image(v1Config(), layers...)
			try(t, err)
			archive, ref := archived(t, img), testregistry.Start(t).Push("team/bomb:1", img)
			try(t, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)) // forgets the peak
			before := peakMemory(t)
			_, _, imported := i.Import(t.Context(), archive, "", unread)
			_, pulled := i.Pull(t.Context(), ref, image.Credentials{}, "", nil)
			for how, err := range map[string]error{"imported": imported, "pulled": pulled} {
				if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "window of more than 128 MiB") {
					t.Errorf("%s, or refused without a reason: %v", how, err)
				}
			}
			if more := peakMemory(t) - before; more > 100<<20 {
				t.Errorf("it took %d MiB of memory of this process", more>>20)
			}
		})
	}
}

// peakMemory returns how many bytes of memory this process has used at most.
func peakMemory(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	try(t, err)
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	line, _, _ := strings.Cut(rest, "\n")
	kib, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(line), "kB")))
	try(t, err)
	return kib << 10
}
