// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/heart/pod"
)

// TestMain is a plug-in where the service has started this program as one.
func TestMain(m *testing.M) {
	if os.Getenv(api.PluginNameEnvVar) == "" {
		os.Exit(m.Run())
	}
	p := &plugin{adjust: &api.ContainerAdjustment{}}
	p.adjust.AddEnv("PLUGIN", "1")
	s, err := stub.New(p)
	if err == nil {
		err = s.Run(context.Background())
	}
	if err != nil {
		os.Exit(1)
	}
}

// installed serves the plug-in that is installed as a script, and returns once it was started.
func installed(t *testing.T, script string, timeout time.Duration) *Service {
	t.Helper()
	dir, err := os.MkdirTemp("", "nri") // a path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	plugins := filepath.Join(dir, "plugins")
	err = errors.Join(os.Mkdir(plugins, 0o700), os.WriteFile(filepath.Join(plugins, "10-test"), []byte("#!/bin/sh\n"+script), 0o700))
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{
		Socket:              filepath.Join(dir, "s"),
		PluginDir:           plugins,
		RequestTimeout:      10 * time.Second,
		RegistrationTimeout: timeout,
		Pods:                func() Pods { return &pods{targets: map[string]pod.Target{}} },
		Logger:              slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	runToTheEnd(t, s, dir)
	<-s.PluginsStarted()
	return s
}

// PROPERTIES 27: the containers that were made while berth started its plug-ins were made without
// them.
func TestAnInstalledPluginTakesPartOnceItIsStarted(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := installed(t, "exec "+self+"\n", time.Minute)
	oci, c := ociSpec(), container("c", "p")
	if err := s.AdjustSpec(t.Context(), c, c.Config, oci); err != nil || !slices.Contains(oci.Process.Env, "PLUGIN=1") {
		t.Errorf("the plug-in takes no part: %q %v", oci.Process.Env, err)
	}
}

// PROPERTIES 27: a plug-in that never registers is given up.
func TestAnInstalledPluginThatHangsIsGivenUp(t *testing.T) {
	s := installed(t, "exec sleep 3600\n", 100*time.Millisecond)
	c := container("c", "p")
	if err := s.AdjustSpec(t.Context(), c, c.Config, ociSpec()); err != nil {
		t.Error(err)
	}
}

// Plug-ins were not served for as long as containerd did not answer. PROPERTIES 17.
func TestSpecificationsThatCannotBeReadDelayARestoreByABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pods{targets: map[string]pod.Target{"p": sandbox("p")}}
		for _, id := range []string{"c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9"} {
			p.targets[id] = container(id, "p")
		}
		s := &Service{
			cfg: Config{
				Pods: func() Pods { return p },
				Spec: func(ctx context.Context, _ string) (*specs.Spec, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				},
				Logger: slog.New(slog.DiscardHandler),
			},
			known: newRegistry(),
		}
		began := time.Now()
		s.restore(t.Context())
		if took := time.Since(began); took != specsTimeout {
			t.Errorf("it took %v, want %v", took, specsTimeout)
		}
		if _, cts := s.known.all(); len(cts) != 9 {
			t.Errorf("plug-ins are synchronised with %d containers, want 9", len(cts))
		}
	})
}
