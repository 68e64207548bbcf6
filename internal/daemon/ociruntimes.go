// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"sync"
	"time"

	ocifeatures "github.com/opencontainers/runtime-spec/specs-go/features"

	"berth/internal/pod"
)

// probeTimeout bounds the question to one OCI runtime.
const probeTimeout = 10 * time.Second

// ociRuntimes asks OCI runtimes what they can. Each is asked once, for all handlers that use it;
// one that did not answer is asked again by the next who wants to know.
type ociRuntimes struct {
	mu       sync.Mutex
	byBinary map[string]*ociAnswer
}

// ociAnswer is what one OCI runtime says.
type ociAnswer struct {
	asking chan struct{} // holds one value while the runtime is asked
	has    *ocifeatures.Features
}

// features runs the command features of the OCI runtime of a handler, or returns what it has said.
func (r *ociRuntimes) features(ctx context.Context, h pod.Handler) (*ocifeatures.Features, error) {
	binary := ociRuntime(h)
	a := r.answer(binary)
	select {
	case a.asking <- struct{}{}:
		defer func() { <-a.asking }()
	case <-ctx.Done():
		return nil, fmt.Errorf("run %s features: another question to it is in flight: %w", binary, ctx.Err())
	}
	if a.has != nil {
		return a.has, nil
	}
	has, err := askFeatures(ctx, binary)
	if err == nil {
		a.has = has
	}
	return has, err
}

func (r *ociRuntimes) answer(binary string) *ociAnswer {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.byBinary[binary]
	if a == nil {
		a = &ociAnswer{asking: make(chan struct{}, 1)}
		if r.byBinary == nil {
			r.byBinary = map[string]*ociAnswer{}
		}
		r.byBinary[binary] = a
	}
	return a
}

func askFeatures(ctx context.Context, binary string) (*ocifeatures.Features, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
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
