// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// rules are a policy of tests: it refuses the namespace "no", and images for the namespace "signed"
// have to pass.
type rules struct {
	mu    sync.Mutex
	asked []string
	pass  *passing
}

type passing struct {
	mu     sync.Mutex
	err    error
	passed []string
}

func (p *passing) Pass(_ context.Context, name string, target ocispec.Descriptor, _ Registry) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passed = append(p.passed, name+" "+target.MediaType)
	return p.err
}

func (r *rules) Pull(namespace, name string) (Pass, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, namespace+" "+name)
	switch namespace {
	case "no":
		return nil, fmt.Errorf("refused by a rule: %w", errdefs.ErrPermissionDenied)
	case "signed":
		return r.pass, nil
	}
	return nil, nil
}

// PROPERTIES 40: the policy is asked before the registry, and once more before anything is fetched.
// A pull that has to pass nothing is not shared with one that has to.
func TestAPullPassesThePolicyFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r := newFake(), &rules{pass: &passing{}}
		f.target.MediaType = "manifest"
		var ended []Pulled
		s := New(f, Config{Logger: slog.New(slog.DiscardHandler), Policy: r, Pulled: func(p Pulled) { ended = append(ended, p) }})
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { _ = s.Run(ctx) })
		defer run.Wait()
		defer cancel()
		if _, err := s.Pull(t.Context(), "busybox", nil, Caller{Namespace: "no"}); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "docker.io/library/busybox:latest") {
			t.Errorf("%v", err)
		}
		if f.pulls != 0 || len(ended) != 0 {
			t.Errorf("%d pulls of what is refused, %v", f.pulls, ended)
		}
		var wg sync.WaitGroup
		for _, namespace := range []string{"a", "b", "signed", "signed"} {
			wg.Go(func() {
				if _, err := s.Pull(t.Context(), "busybox", nil, Caller{Namespace: namespace}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if f.pulls != 2 {
			t.Errorf("%d pulls, want one that has to pass and one that need not", f.pulls)
		}
		close(f.release)
		wg.Wait()
		if len(r.pass.passed) != 1 || r.pass.passed[0] != "docker.io/library/busybox:latest manifest" {
			t.Errorf("%q", r.pass.passed)
		}
		for _, tt := range []struct {
			err  error
			is   func(error) bool
			kind string
		}{
			{errdefs.ErrPermissionDenied, errdefs.IsPermissionDenied, "refused"},
			{errdefs.ErrUnavailable, errdefs.IsUnavailable, "unverified"},
		} {
			r.pass.err = fmt.Errorf("no signature: %w", tt.err)
			ended = nil
			_, err := s.Pull(t.Context(), "busybox", nil, Caller{Namespace: "signed"})
			if !tt.is(err) || len(ended) != 1 || Kind(ended[0].Err) != tt.kind {
				t.Errorf("%v, %+v", err, ended)
			}
		}
		before := len(r.asked)
		if _, err := s.Pull(t.Context(), "pause", nil, Caller{Namespace: "no", Itself: true}); err != nil || len(r.asked) != before {
			t.Errorf("the image that berth needs: %v", err)
		}
	})
}

// A registry of a policy sends clients to storage with URLs that are signed: an error with one of
// them gave it to whoever reads the log.
func TestErrorsOfAPolicysRegistryNameNoCredentials(t *testing.T) {
	f := newFake()
	f.registry = unanswering{errors.New(`Get "https://store.example/x?signature=secret": EOF`)}
	reg := New(f, Config{}).Registry("x.example/a")
	_, one := reg.Manifest(t.Context(), "x.example/a:1")
	_, two := reg.Blob(t.Context(), "x.example/a:1", ocispec.Descriptor{})
	for _, err := range []error{one, two} {
		if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "store.example") {
			t.Errorf("%v", err)
		}
	}
}

type unanswering struct{ err error }

func (f unanswering) Manifest(context.Context, string) ([]byte, error) { return nil, f.err }
func (f unanswering) Blob(context.Context, string, ocispec.Descriptor) ([]byte, error) {
	return nil, f.err
}
