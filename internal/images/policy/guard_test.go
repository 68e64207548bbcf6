// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"context"
	"crypto/elliptic"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// guarded is a guard with a file, and what it has said.
type guarded struct {
	*Guard
	t    *testing.T
	dir  string
	file string
	log  bytes.Buffer

	mu       sync.Mutex
	outcomes []string
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{t: t, dir: t.TempDir()}
	g.file = filepath.Join(g.dir, "policy.toml")
	g.begin()
	return g
}

// begin makes the guard, as a berth that starts does.
func (g *guarded) begin() {
	g.Guard = NewGuard(Config{
		Verified: filepath.Join(g.dir, "verified.json"),
		Logger:   slog.New(slog.NewTextHandler(&g.log, nil)),
		Decided: func(d Decided) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.outcomes = append(g.outcomes, fmt.Sprintf("%s %q %s", d.At, d.Rule, d.Outcome))
		},
	})
}

// write writes the policy in place, with an age, so that it does not look as if it may change again.
func (g *guarded) write(text string, age time.Duration) {
	g.t.Helper()
	write(g.t, g.file, text, 0o600)
	at := time.Now().Add(-age)
	if err := os.Chtimes(g.file, at, at); err != nil {
		g.t.Fatal(err)
	}
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func (g *guarded) decisions() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.outcomes)
}

const hub = "[[rules]]\nname='hub'\nregistries=['docker.io']\naction='allow'\n" + rest

// PROPERTIES 40: without a file everything is let in; with one, what a rule refuses is refused with
// its name; a change holds from the next decision on.
func TestTheFileThatIsThereNowDecides(t *testing.T) {
	g := newGuarded(t)
	pull := func(ref string) error { _, _, err := g.Pull("n", ref); return err }
	if err := pull("x.example/a"); err != nil || len(g.decisions()) != 0 {
		t.Errorf("%v, %q", err, g.decisions())
	}
	g.write(hub, time.Hour)
	g.Use(g.file, false)
	if err := pull("busybox"); err != nil {
		t.Error(err)
	}
	err := pull("x.example/a")
	var no *Refusal
	if !errdefs.IsPermissionDenied(err) || !errors.As(err, &no) || no.Rule != "rest" || no.Unsigned || errors.Is(err, crierrors.ErrSignatureValidationFailed) {
		t.Errorf("%v", err)
	}
	for _, word := range []string{"x.example/a", "namespace n", `rule "rest"`, g.file} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not name %s", err, word)
		}
	}
	for range 3 { // in place, of the same size, and at once
		g.write(strings.Replace(hub, "docker.io", "x.example", 1), 0)
		if err := pull("busybox"); !errdefs.IsPermissionDenied(err) {
			t.Errorf("the old rules hold: %v", err)
		}
		g.write(hub, 0)
		if err := pull("busybox"); err != nil {
			t.Errorf("the old rules hold: %v", err)
		}
	}
	g.Use("", false)
	if err := pull("x.example/a"); err != nil {
		t.Error(err)
	}
	if err := pull("::"); err != nil {
		t.Errorf("a policy that is not there has read a reference: %v", err)
	}
	g.Use(g.file, false)
	if err := pull("::"); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
	want := []string{`pull "hub" allowed`, `pull "rest" refused`}
	if got := g.decisions(); !slices.Equal(got[:2], want) {
		t.Errorf("%q", got)
	}
}

// PROPERTIES 40: a file that cannot be used lets in nothing, or everything, as it is configured, and
// says so. It does not look like a refusal: whoever asks tries again.
func TestAFileThatCannotBeUsedIsClosedOrOpen(t *testing.T) {
	for what, spoil := range map[string]func(g *guarded){
		"absent":       func(*guarded) {},
		"half written": func(g *guarded) { g.write(hub[:len(hub)/2], time.Hour) },
		"a directory":  func(g *guarded) { _ = os.Mkdir(g.file, 0o700) },
		"open to others": func(g *guarded) {
			g.write(hub, time.Hour)
			if err := os.Chmod(g.file, 0o666); err != nil {
				g.t.Fatal(err)
			}
		},
		"too large": func(g *guarded) { g.write(hub+"#"+strings.Repeat("x", maxFile), time.Hour) },
		"without its keys": func(g *guarded) {
			g.write("[[rules]]\nname='a'\nregistries=['a.example']\naction='allow'\nsignatures='required'\nkeys=['"+g.dir+"/key']\n"+rest, time.Hour)
		},
	} {
		t.Run(what, func(t *testing.T) {
			g := newGuarded(t)
			spoil(g)
			g.Use(g.file, false)
			if configured, err := g.Broken(); !configured || err == nil {
				t.Errorf("%v %v", configured, err)
			}
			_, _, err := g.Pull("n", "busybox")
			if !errdefs.IsUnavailable(err) || errdefs.IsPermissionDenied(err) || errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "image.policy_failure is closed") || !strings.Contains(err.Error(), g.dir) {
				t.Errorf("%v", err)
			}
			if err := g.Create(t.Context(), "n", Image{ID: "sha256:1", Asked: "busybox"}, nil); !errdefs.IsUnavailable(err) {
				t.Errorf("%v", err)
			}
			if p := g.Problems(); len(p) != 1 || !strings.Contains(p[0], "no image is pulled") {
				t.Errorf("%q", p)
			}
			if n := strings.Count(g.log.String(), "level=ERROR"); n != 1 {
				t.Errorf("%d errors in the log:\n%s", n, g.log.String())
			}
			g.Use(g.file, true)
			if _, _, err := g.Pull("n", "busybox"); err != nil {
				t.Errorf("%v", err)
			}
			if err := g.Create(t.Context(), "n", Image{ID: "sha256:1", Asked: "busybox"}, nil); err != nil {
				t.Errorf("%v", err)
			}
			if p := g.Problems(); len(p) != 1 || !strings.Contains(p[0], "every image is let in") {
				t.Errorf("%q", p)
			}
			want := []string{`pull "" unanswered`, `create "" unanswered`, `pull "" unchecked`, `create "" unchecked`}
			if got := g.decisions(); !slices.Equal(got, want) {
				t.Errorf("%q", got)
			}
			// It is mended, and holds without being asked to.
			_ = os.Remove(g.file)
			g.write(hub, time.Hour)
			write(t, filepath.Join(g.dir, "key"), string(publicPEM(t, ecdsaKey(t, elliptic.P256()))), 0o600)
			if _, _, err := g.Pull("n", "x.example/a"); !errdefs.IsPermissionDenied(err) || len(g.Problems()) != 0 {
				t.Errorf("%v %q", err, g.Problems())
			}
		})
	}
}

// A FIFO in the place of the file was waited for without end.
func TestAFIFOIsNoPolicy(t *testing.T) {
	g := newGuarded(t)
	mkfifo(t, g.file)
	g.Use(g.file, false)
	if _, err := g.Broken(); err == nil {
		t.Error("a FIFO was read")
	}
}

// signedBy is a policy whose rule wants signatures by the keys of a file.
func (g *guarded) signedBy(more string, keys []byte) {
	g.t.Helper()
	write(g.t, filepath.Join(g.dir, "key"), string(keys), 0o600)
	g.write("verifier_timeout='1s'\n[[rules]]\nname='signed'\nregistries=['x.example']\naction='allow'\nsignatures='required'\n"+more+rest, time.Hour)
	g.Use(g.file, false)
}

func (g *guarded) keyFile() string { return "keys=['" + filepath.Join(g.dir, "key") + "']\n" }

// passed pulls x.example/app, whose name stands for target.
func (g *guarded) passed(ctx context.Context, target digest.Digest, from Registry) error {
	g.t.Helper()
	ticket, signed, err := g.Pull("n", "x.example/app:1")
	if err != nil || !signed {
		g.t.Fatalf("%v %v", signed, err)
	}
	return ticket.Pass(ctx, "x.example/app:1", ocispec.Descriptor{Digest: target, Size: 1}, from)
}

// created makes a container of x.example/app, which is here.
func (g *guarded) created(ctx context.Context, target digest.Digest, from Registry) error {
	return g.Create(ctx, "n", Image{
		ID:    "sha256:1",
		Asked: "x.example/app:1",
		Names: []Named{{"x.example/app:1", ocispec.Descriptor{Digest: target, Size: 1}}},
	}, func(string) Registry { return from })
}

// PROPERTIES 40: what was verified by a pull is remembered for the containers that are made of it,
// also by the next berth, for the same keys alone.
func TestWhatAPullVerifiedNeedsNoRegistryLater(t *testing.T) {
	g := newGuarded(t)
	key := ecdsaKey(t, elliptic.P256())
	g.signedBy(g.keyFile(), publicPEM(t, key))
	target := digest.FromString("image")
	reg, away := newRegistry(), newRegistry()
	away.err = errors.New("connection refused")
	if err := g.created(t.Context(), target, away); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), `rule "signed"`) {
		t.Errorf("before it was verified: %v", err)
	}
	err := g.passed(t.Context(), target, reg)
	if !errdefs.IsPermissionDenied(err) || !errors.Is(err, crierrors.ErrSignatureValidationFailed) || !strings.Contains(err.Error(), `rule "signed"`) {
		t.Errorf("unsigned: %v", err)
	}
	reg.add("x.example/app", target, payloadOf(target), sign(t, key, payloadOf(target)))
	if err := g.passed(t.Context(), target, reg); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := g.created(t.Context(), target, away); err != nil {
			t.Errorf("after it was verified: %v", err)
		}
		g.begin() // another berth
		g.Use(g.file, false)
	}
	if err := g.created(t.Context(), digest.FromString("other"), away); !errdefs.IsUnavailable(err) {
		t.Errorf("another digest: %v", err)
	}
	g.signedBy(g.keyFile(), publicPEM(t, ecdsaKey(t, elliptic.P256())))
	if err := g.created(t.Context(), target, away); !errdefs.IsUnavailable(err) {
		t.Errorf("other keys: %v", err)
	}
	if err := g.created(t.Context(), target, reg); !errdefs.IsPermissionDenied(err) {
		t.Errorf("other keys: %v", err)
	}
	g.signedBy(g.keyFile(), publicPEM(t, key))
	if err := g.created(t.Context(), target, away); err != nil {
		t.Errorf("the first keys again: %v", err)
	}
	// A pull asks again, and what it finds counts.
	if err := g.passed(t.Context(), target, away); !errdefs.IsUnavailable(err) {
		t.Errorf("%v", err)
	}
	if err := g.created(t.Context(), target, away); err != nil {
		t.Errorf("a registry that is away has made berth forget: %v", err)
	}
	if err := g.passed(t.Context(), target, newRegistry()); !errdefs.IsPermissionDenied(err) {
		t.Errorf("%v", err)
	}
	if err := g.created(t.Context(), target, away); !errdefs.IsUnavailable(err) {
		t.Errorf("a signature that is gone is remembered: %v", err)
	}
}

// What is remembered is bounded, the oldest goes, and a file that is damaged is not believed.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	v := verified{file: filepath.Join(t.TempDir(), "verified.json"), log: slog.New(slog.DiscardHandler)}
	n := name{repository: "x.example/app"}
	first := digest.FromString("0")
	v.add("k", n, first)
	v.file = "" // the test need not write thousands of times
	for i := range maxVerified {
		v.add("k", n, digest.FromString(fmt.Sprint(i+1)))
	}
	if len(v.at) != maxVerified || v.has("k", n, first) || !v.has("k", n, digest.FromString("7")) {
		t.Errorf("%d are remembered", len(v.at))
	}
	file := filepath.Join(t.TempDir(), "verified.json")
	write(t, file, `{"x": 7`, 0o600)
	v = verified{file: file, log: slog.New(slog.DiscardHandler)}
	if v.has("k", n, first) {
		t.Error("remembered out of nothing")
	}
	v.add("k", n, first)
	v = verified{file: file, log: slog.New(slog.DiscardHandler)}
	if !v.has("k", n, first) {
		t.Error("what was damaged stays damaged")
	}
}

// PROPERTIES 40: a registry that does not answer costs a minute at most, and whoever goes away does not
// wait; whoever asks the same shares the answer.
func TestARegistryThatDoesNotAnswerIsNotWaitedForForEver(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := &guarded{t: t, dir: dir, file: filepath.Join(dir, "policy.toml")}
		g.begin()
		g.signedBy(g.keyFile(), publicPEM(t, ecdsaKey(t, elliptic.P256())))
		reg := newRegistry()
		reg.hang = make(chan struct{})
		target := digest.FromString("image")
		began := time.Now()
		if err := g.passed(t.Context(), target, reg); !errdefs.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if took := time.Since(began); took != askTimeout {
			t.Errorf("it took %s", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.passed(ctx, target, reg); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		before := reg.asked
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := g.created(t.Context(), target, reg); !errdefs.IsPermissionDenied(err) {
					t.Errorf("%v", err)
				}
			})
		}
		impatient, leave := context.WithCancel(t.Context())
		wg.Go(func() {
			if err := g.created(impatient, target, reg); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		})
		synctest.Wait()
		leave()
		synctest.Wait()
		close(reg.hang)
		wg.Wait()
		if asked := reg.asked - before; asked != 1 {
			t.Errorf("the registry was asked %d times", asked)
		}
	})
}
