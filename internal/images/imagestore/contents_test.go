// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"net/http"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"berth/internal/images/image"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// fetched pulls a reference.
func fetched(t *testing.T, i *Store, ref string) image.Stored {
	t.Helper()
	st, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil)
	try(t, err)
	return st
}

// layerDigests returns the digests of the compressed layers.
func layerDigests(t *testing.T, img v1.Image) (digests []string) {
	t.Helper()
	layers, err := img.Layers()
	try(t, err)
	for _, l := range layers {
		d, err := l.Digest()
		try(t, err)
		digests = append(digests, d.String())
	}
	return digests
}

// Where compressed layers are not kept, they are gone once an image was pulled or imported, it is
// listed with the same size, its files are there, and pulling it again fetches no layer. With the
// setting off again, what is pulled is kept.
func TestCompressedLayersAreDiscarded(t *testing.T) {
	i := store(t)
	reg := testregistry.Start(t)
	first, second := imageOf(t, v1Config(), testimage.File{Name: "a", Body: []byte("a")}), imageOf(t, v1Config(), testimage.File{Name: "b", Body: []byte("b")})
	ref := reg.Push("team/first:1", first)
	i.SetDiscard(true)
	has := func(digests []string) (n int) {
		c, err := i.Contents(t.Context())
		try(t, err)
		for _, d := range digests {
			if _, ok := c.Blobs[d]; ok {
				n++
			}
		}
		return n
	}
	st := fetched(t, i, ref)
	if n := has(layerDigests(t, first)); n != 0 {
		t.Errorf("%d layers of a pulled image are kept", n)
	}
	asked := len(reg.Requests())
	if again := fetched(t, i, ref); again.Size != st.Size || again.ID != st.ID {
		t.Errorf("%+v, before %+v", again, st)
	}
	for _, r := range reg.Requests()[asked:] {
		for _, d := range layerDigests(t, first) {
			if r.Method == http.MethodGet && r.Path == "/v2/team/first/blobs/"+d {
				t.Errorf("the layer was fetched again: %v", r)
			}
		}
	}
	if files, err := i.ReadFiles(t.Context(), image.Root{ChainID: st.ChainID}, 10, "a"); err != nil || string(files[0]) != "a" {
		t.Errorf("%q %v", files, err)
	}
	if got, err := i.Get(t.Context(), ref); err != nil || got.Size != st.Size || got.Created.IsZero() {
		t.Errorf("%+v %v", got, err)
	}
	imported(t, i, second)
	if n := has(layerDigests(t, second)); n != 0 {
		t.Errorf("%d layers of an imported image are kept", n)
	}
	i.SetDiscard(false)
	third := imageOf(t, v1Config(), testimage.File{Name: "c", Body: []byte("c")})
	fetched(t, i, reg.Push("team/third:1", third))
	if n := has(layerDigests(t, third)); n != 1 {
		t.Errorf("%d layers are kept", n)
	}
}

// What an image consists of is known by its ID, with what it shares with others.
func TestContentsAreOfEachImage(t *testing.T) {
	i := store(t)
	reg := testregistry.Start(t)
	base := imageOf(t, v1Config(), testimage.File{Name: "a", Body: make([]byte, 1<<16)})
	layer, err := testimage.Layer(testimage.File{Name: "b", Body: make([]byte, 1<<15)})
	try(t, err)
	above, err := mutate.AppendLayers(base, layer)
	try(t, err)
	one, two := fetched(t, i, reg.Push("team/base:1", base)), fetched(t, i, reg.Push("team/above:1", above))
	c, err := i.Contents(t.Context())
	try(t, err)
	if len(c.Images) != 2 || len(c.Unread) != 0 || len(c.Layers) != 2 || c.Layers[two.ChainID].Parent != one.ChainID {
		t.Errorf("%+v", c)
	}
	for name, l := range c.Layers {
		if !l.Measured || l.Size < 1<<15 {
			t.Errorf("layer %s: %+v", name, l)
		}
	}
	for _, st := range []image.Stored{one, two} {
		p := c.Images[st.ID]
		if p.ChainID != st.ChainID || !p.Blobs[st.Name.Target().Digest.String()] || !p.Blobs[st.ID] {
			t.Errorf("%+v", p)
		}
		for d := range p.Blobs {
			if c.Blobs[d] == 0 {
				t.Errorf("blob %s of %s has no size", d, st.Name)
			}
		}
	}
	for _, d := range layerDigests(t, base) {
		if !c.Images[one.ID].Blobs[d] || !c.Images[two.ID].Blobs[d] {
			t.Errorf("the layer %s is not shared", d)
		}
	}
}

// An answer of a registry is known as such, with its code.
func TestAnErrorOfTheRegistryHasItsKind(t *testing.T) {
	i := store(t)
	reg := testregistry.Start(t, testregistry.BasicAuth("me", "secret"))
	ref := reg.Push("team/app:1", imageOf(t, v1Config(), testimage.File{Name: "a"}))
	for want, c := range map[string]struct {
		ref   string
		creds image.Credentials
	}{
		"unauthorized": {ref, image.Credentials{Username: "me", Password: "wrong"}},
		"not_found":    {ref + "2", image.Credentials{Username: "me", Password: "secret"}},
		"unreachable":  {"127.0.0.1:1/team/app:1", image.Credentials{}},
	} {
		_, err := i.Pull(t.Context(), c.ref, c.creds, "", nil)
		if got := image.Kind(err); got != want {
			t.Errorf("%s: %v is %s, want %s", c.ref, err, got, want)
		}
	}
}
