// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"berth/internal/heart/pod"
)

// A handler whose shim cannot be asked gets pause processes for as long as that is so, and what the
// shim has said is kept.
func TestAShimIsAskedUntilItSaysWhetherItCanBeASandbox(t *testing.T) {
	asked := map[string]int{}
	var down error
	p := New(Config{
		Handlers: map[string]pod.Handler{
			"ours":  {Name: "ours", HostProcess: true, Options: pod.OptionsRunc},
			"stock": {Name: "stock", HostProcess: true, Options: pod.OptionsRunc},
			"vm":    {Name: "vm", Options: pod.OptionsGeneric},
			"other": {Name: "other", HostProcess: true, Options: pod.OptionsRunc, Sandboxer: "shim"},
		},
		SandboxShim: func(_ context.Context, h pod.Handler) (bool, error) {
			asked[h.Name]++
			return h.Name == "ours", down
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	down = errors.New("containerd is away")
	if p.SandboxShim(t.Context(), "ours") {
		t.Error("a shim that has not answered can")
	}
	down = nil
	for range 2 {
		for name, want := range map[string]bool{"ours": true, "stock": false, "vm": false, "other": false} {
			if p.SandboxShim(t.Context(), name) != want {
				t.Errorf("%s: %v", name, !want)
			}
		}
	}
	if asked["ours"] != 2 || asked["stock"] != 1 || asked["vm"]+asked["other"] != 0 {
		t.Errorf("asked %v", asked)
	}
}
