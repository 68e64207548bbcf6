// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
)

// holes is a service in which a layer finds a hole.
type holes struct{ containerd.DiffService }

func (holes) Apply(context.Context, ocispec.Descriptor, []mount.Mount, ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	panic("a hole in a decoder")
}

// A panic over a manifest or a layer is in a goroutine of containerd's client, where nobody else
// can contain it: berth ended.
func TestAPanicInAGoroutineOfAPullIsAnErrorOfThatPull(t *testing.T) {
	survived := 0
	i := open(nil, Config{Logger: slog.New(slog.DiscardHandler), Panicked: func() { survived++ }})
	hole := images.HandlerFunc(func(context.Context, ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		panic("a hole in a parser")
	})
	p := &pulling{Puller: i.Puller, Sink: unseen{}, attempt: attempt{at: stageBeside}, ref: "evil:1"}
	manifest := watched{hole, p, i.served.share("")}
	_, err := manifest.Handle(t.Context(), ocispec.Descriptor{})
	if err = connection.Native(err); !errdefs.IsInternal(err) || !strings.Contains(err.Error(), "evil:1") {
		t.Errorf("a manifest: %v", err)
	}
	_, err = aloneUnpacker{holes{}, nil, i.core, unseen{}, nil}.Apply(t.Context(), ocispec.Descriptor{Digest: "sha256:evil"}, nil)
	if err = connection.Native(err); !errdefs.IsInternal(err) || !strings.Contains(err.Error(), "sha256:evil") {
		t.Errorf("a layer: %v", err)
	}
	if survived != 2 {
		t.Errorf("%d panics were counted", survived)
	}
}
