// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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

// PROPERTIES 34: what containerd 2.4 had answered was believed after 1.7 took its place, whose shims
// serve no pod without a process: each new pod failed until berth was started again.
func TestAnotherContainerdIsAskedAgain(t *testing.T) {
	runc := filepath.Join(t.TempDir(), "runc")
	features := `{"linux": {"namespaces": ["user"], "mountExtensions": {"idmap": {"enabled": true}}}}`
	if err := os.WriteFile(runc, []byte("#!/bin/sh\necho '"+features+"'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var can atomic.Bool
		can.Store(true)
		p := New(Config{
			Handlers: map[string]pod.Handler{"runc": {Name: "runc", HostProcess: true, Options: pod.OptionsRunc, Binary: runc}},
			SandboxShim: func(_ context.Context, h pod.Handler) (bool, error) {
				was := can.Load()
				time.Sleep(time.Second)
				return was, nil
			},
			MapsOwners: func(context.Context, string) (bool, error) { return can.Load(), nil },
			Logger:     slog.New(slog.DiscardHandler),
		})
		go func() { _ = p.RunUserNamespaces(t.Context(), nil) }()
		go func() { _ = p.RunSandboxShims(t.Context(), nil) }()
		time.Sleep(time.Second / 2)
		for _, is := range []bool{false, true, false} {
			can.Store(is)
			p.Reconnected() // the first time the question about the shim is still in flight
			time.Sleep(3 * time.Second)
			if p.SandboxShim(t.Context(), "runc") != is || p.Features("runc").GetUserNamespaces() != is {
				t.Errorf("containerd's answer is %v now, and the last one's is believed", is)
			}
		}
	})
}
