// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/images/image"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// PROPERTIES 40: whoever decides on a pull is asked once the registry has said what the name stands
// for, and can read documents before anything of the image is fetched.
func TestAResolverAsksBeforeAnythingIsFetched(t *testing.T) {
	img, err := testimage.Image(v1Config())
	if err != nil {
		t.Fatal(err)
	}
	reg := testregistry.Start(t)
	ref, other := reg.Push("team/app:1", img), reg.Push("team/app:other", img)
	no := errors.New("no")
	var got ocispec.Descriptor
	r := askingResolver{resolver(t, reg.Addr, image.Credentials{}), func(ctx context.Context, target ocispec.Descriptor, from image.Registry) error {
		got = target
		for _, q := range reg.Requests() {
			if q.Method != http.MethodHead {
				t.Errorf("%s %s came before the question", q.Method, q.Path)
			}
		}
		b, err := from.Manifest(ctx, other)
		if err != nil || !strings.Contains(string(b), "schemaVersion") {
			t.Errorf("%q %v", b, err)
		}
		if _, err := from.Manifest(ctx, reg.Addr+"/team/app:absent"); !errdefs.IsNotFound(err) {
			t.Errorf("%v", err)
		}
		return no
	}}
	want, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Resolve(t.Context(), ref); !errors.Is(err, no) || got.Digest.String() != want.String() {
		t.Errorf("%v %v", err, got)
	}
	got = ocispec.Descriptor{}
	if _, _, err := r.Resolve(t.Context(), reg.Addr+"/team/app:absent"); !errdefs.IsNotFound(err) || got.Digest != "" {
		t.Errorf("%v %v", err, got)
	}
}

// containerd's client sets options of a resolver that takes them: one that stands before it passes
// them on.
func TestAnAskingResolverTakesOptions(t *testing.T) {
	inner := &optional{}
	var r remotes.Resolver = askingResolver{Resolver: inner}
	with, ok := r.(remotes.ResolverWithOptions)
	if !ok {
		t.Fatal("it takes none")
	}
	with.SetOptions(transfer.WithMaxConcurrentDownloads(3))
	if inner.options != 1 {
		t.Error("the options are lost")
	}
}

type optional struct {
	remotes.Resolver
	options int
}

func (o *optional) SetOptions(options ...transfer.ImageResolverOption) { o.options += len(options) }

// What a registry sends is what was asked for, as a whole, and no larger than what may be read.
func TestADocumentIsWhatItsDigestSays(t *testing.T) {
	lies := map[string]string{}
	reg := testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for d, body := range lies {
				if strings.HasSuffix(r.URL.Path, d) {
					_, _ = w.Write([]byte(body))
					return
				}
			}
			next.ServeHTTP(w, r)
		})
	}))
	good := digest.FromString("good")
	ref := reg.Addr + "/team/app:1"
	from := (open(nil, Config{})).Registry(ref)
	desc := ocispec.Descriptor{MediaType: "application/x", Digest: good, Size: 4}
	for body, want := range map[string]bool{"good": true, "evil": false, "goo": false, "goods": false, "": false} {
		lies[good.String()] = body
		b, err := from.Blob(t.Context(), ref, desc)
		if (err == nil) != want || want && string(b) != body || errdefs.IsNotFound(err) {
			t.Errorf("%q: %q %v", body, b, err)
		}
	}
	desc.Size = maxBlob + 1
	if _, err := from.Blob(t.Context(), ref, desc); !errdefs.IsInvalidArgument(err) {
		t.Errorf("%v", err)
	}
	if _, err := from.Blob(t.Context(), ref, ocispec.Descriptor{Digest: "x:y", Size: 1}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("%v", err)
	}
}
