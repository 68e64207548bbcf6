// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	ocifeatures "github.com/opencontainers/runtime-spec/specs-go/features"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/spec"
)

// runcType is the type of the handlers whose OCI runtime has the command line of runc.
const runcType = "io.containerd.runc.v2"

// features is what the OCI runtimes of the handlers say that they can. It is asked in the
// background, once: until a runtime has answered, nothing is advertised for its handlers.
type features struct {
	// host is what the kernel can do: a feature is advertised where both can.
	host     spec.Host
	runtimes *ociRuntimes

	mu        sync.Mutex
	byHandler map[string]*ocifeatures.Features
}

// probe asks the OCI runtimes of the handlers. One that does not answer costs its handlers their
// features and nothing else; the error says which.
func (f *features) probe(ctx context.Context, handlers map[string]pod.Handler, report func(handler string, err error)) {
	for _, name := range slices.Sorted(maps.Keys(handlers)) {
		h := handlers[name]
		if h.Type != runcType {
			continue
		}
		has, err := f.runtimes.features(ctx, h)
		if err != nil {
			report(name, err)
			continue
		}
		f.mu.Lock()
		if f.byHandler == nil {
			f.byHandler = map[string]*ocifeatures.Features{}
		}
		f.byHandler[name] = has
		f.mu.Unlock()
	}
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
