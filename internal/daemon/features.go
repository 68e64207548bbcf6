// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"

	ocifeatures "github.com/opencontainers/runtime-spec/specs-go/features"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/spec"
)

// features is what the OCI runtimes of the handlers say that they can. It is asked in the
// background: until a runtime has answered, nothing is advertised for its handlers.
type features struct {
	// host is what the kernel can do: a feature is advertised where both can.
	host     spec.Host
	runtimes *ociRuntimes

	mu        sync.Mutex
	byHandler map[string]*ocifeatures.Features
}

// probe asks the OCI runtimes of the handlers, each until it has answered. One that does not answer
// costs its handlers their features and nothing else.
func (f *features) probe(ctx context.Context, handlers map[string]pod.Handler, log *slog.Logger) {
	var asked []string
	for name, h := range handlers {
		if h.HostProcess && h.Options == pod.OptionsRunc {
			asked = append(asked, name)
		}
	}
	slices.Sort(asked)
	ready := func(ctx context.Context) error { return ctx.Err() } // they are programs on this host
	untilAnswered(ctx, asked, ready, func(ctx context.Context, name string) error {
		has, err := f.runtimes.features(ctx, handlers[name])
		if err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.byHandler == nil {
			f.byHandler = map[string]*ocifeatures.Features{}
		}
		f.byHandler[name] = has
		return nil
	}, func(name string, err error) {
		log.Warn("no features are advertised for a runtime handler until its OCI runtime answers; asking again", "handler", name, "err", err)
	})
}

// ociRuntime is the OCI runtime of a handler of runc's shim.
func ociRuntime(h pod.Handler) string { return cmp.Or(h.Binary, "runc") } // the shim's default

// of returns what CRI advertises for a handler.
func (f *features) of(handler string) *runtimeapi.RuntimeHandlerFeatures {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &runtimeapi.RuntimeHandlerFeatures{}
	if has := f.byHandler[handler]; has != nil {
		out.RecursiveReadOnlyMounts = f.host.RecursiveReadOnly && slices.Contains(has.MountOptions, "rro")
	}
	return out
}
