// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"sync"
	"time"

	ocifeatures "github.com/opencontainers/runtime-spec/specs-go/features"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/spec"
)

// probeTimeout bounds the question to one OCI runtime.
const probeTimeout = 10 * time.Second

// runcType is the type of the handlers whose OCI runtime has the command line of runc.
const runcType = "io.containerd.runc.v2"

// features is what the OCI runtimes of the handlers say that they can. It is asked in the
// background, once: until a runtime has answered, nothing is advertised for its handlers.
type features struct {
	// host is what the kernel can do: a feature is advertised where both can.
	host spec.Host

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
		has, err := ask(ctx, h)
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

// ask runs the command features of the OCI runtime of a handler.
func ask(ctx context.Context, h pod.Handler) (*ocifeatures.Features, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	binary := ociRuntime(h)
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, "features")
	cmd.Stderr = &stderr
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run %s features: %w: %s", binary, err, bytes.TrimSpace(stderr.Bytes()))
	}
	var has ocifeatures.Features
	if err := json.Unmarshal(out, &has); err != nil {
		return nil, fmt.Errorf("read features of %s: %w", binary, err)
	}
	return &has, nil
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
