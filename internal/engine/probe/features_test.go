// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/heart/pod"
)

// warnings collects the handlers that are warned about.
type warnings struct {
	slog.Handler
	mu   sync.Mutex
	errs map[string][]string // by handler
}

func (w *warnings) log() *slog.Logger {
	w.Handler, w.errs = slog.DiscardHandler, map[string][]string{}
	return slog.New(w)
}

func (*warnings) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	var handler, err string
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "handler":
			handler = a.Value.String()
		case "err":
			err = a.Value.String()
		}
		return true
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errs[handler] = append(w.errs[handler], err)
	return nil
}

// Recursive read-only mounts were given and not advertised, so that the kubelet refused pods that
// ask for them; and then not for a handler whose shim is named by its path. PROPERTIES 22.
func TestFeaturesAreAdvertisedWhereTheRuntimeAndTheKernelHaveThem(t *testing.T) {
	dir := t.TempDir()
	handler := func(name, script string) pod.Handler {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
		return pod.Handler{
			Type:        "io.containerd.runc.v2",
			HostProcess: true,
			Options:     pod.OptionsRunc,
			Binary:      path,
		}
	}
	rro := `[ "$1" = features ] && echo '{"mountOptions":["ro","rro"]}'`
	handlers := map[string]pod.Handler{
		"runc":   handler("runc", rro),
		"path":   handler("path", rro),
		"old":    handler("old", `echo '{"mountOptions":["ro"]}'`),
		"broken": handler("broken", "echo no such command >&2; exit 3"),
		"words":  handler("words", "echo usage"),
		"absent": {HostProcess: true, Options: pod.OptionsRunc, Binary: filepath.Join(dir, "absent")},
		"vm":     {Type: "io.containerd.kata.v2", Options: pod.OptionsGeneric, Binary: filepath.Join(dir, "runc")},
	}
	byPath := handlers["path"]
	byPath.Type = "/opt/bin/containerd-shim-runc-v2"
	handlers["path"] = byPath
	for _, kernel := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var w warnings
			p := New(Config{Handlers: handlers, RecursiveReadOnly: kernel, Logger: w.log()})
			if p.Features("runc").GetRecursiveReadOnlyMounts() {
				t.Error("advertised before the runtime was asked")
			}
			go func() { _ = p.RunFeatures(t.Context()) }()
			synctest.Wait()
			for name := range handlers {
				if got, want := p.Features(name).GetRecursiveReadOnlyMounts(), kernel && (name == "runc" || name == "path"); got != want {
					t.Errorf("kernel %v, handler %s: recursive read-only mounts %v, want %v", kernel, name, got, want)
				}
			}
			if len(w.errs) != 3 || len(w.errs["broken"]) != 1 || !strings.Contains(w.errs["broken"][0], "no such command") {
				t.Errorf("reported: %q", w.errs)
			}
		})
	}
}

// A runtime that did not answer once, because the node was busy when it booted, was asked again
// only by the next berth. PROPERTIES 22.
func TestARuntimeThatDidNotAnswerIsAskedAgain(t *testing.T) {
	dir := t.TempDir()
	binary, can := filepath.Join(dir, "runc"), filepath.Join(dir, "can")
	script := "#!/bin/sh\n[ -e " + can + " ] || exit 1\n" +
		`echo '{"mountOptions":["rro"],"linux":{"namespaces":["user"],"mountExtensions":{"idmap":{"enabled":true}}}}'` + "\n"
	if err := os.WriteFile(binary, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	handlers := map[string]pod.Handler{"runc": {HostProcess: true, Options: pod.OptionsRunc, Binary: binary}}
	synctest.Test(t, func(t *testing.T) {
		times := 0
		var w warnings
		p := New(Config{
			Handlers:          handlers,
			Snapshotter:       "overlayfs",
			RecursiveReadOnly: true,
			MapsOwners: func(context.Context, string) (bool, error) {
				if times++; times == 1 {
					return false, errors.New("containerd is away")
				}
				return true, nil
			},
			Logger: w.log(),
		})
		go func() { _ = p.RunFeatures(t.Context()) }()
		go func() { _ = p.RunUserNamespaces(t.Context(), nil) }()
		time.Sleep(time.Hour)
		if f := p.Features("runc"); f.GetRecursiveReadOnlyMounts() || f.GetUserNamespaces() {
			t.Error("advertised although the runtime does not answer")
		}
		if len(w.errs["runc"]) != 2 {
			t.Errorf("one warning of each is enough: %q", w.errs)
		}
		if err := os.WriteFile(can, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if f := p.Features("runc"); !f.GetRecursiveReadOnlyMounts() || !f.GetUserNamespaces() || times != 2 {
			t.Errorf("not advertised although the runtime has answered; asked for owners %d times", times)
		}
	})
}

// The answer that a handler cannot is final.
func TestARuntimeThatHasAnsweredIsNotAskedAgain(t *testing.T) {
	handlers := map[string]pod.Handler{"vm": {Options: pod.OptionsGeneric}}
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		ready := func(context.Context) error { asked++; return nil }
		p := New(Config{Handlers: handlers, Logger: slog.New(slog.DiscardHandler)})
		go func() { _ = p.RunUserNamespaces(t.Context(), ready) }()
		if err := p.RunFeatures(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		if p.Features("vm").GetUserNamespaces() || asked != 1 {
			t.Errorf("it was asked %d times", asked)
		}
	})
}

// The features and the user namespaces of each handler were two questions to the same OCI runtime.
func TestAnOCIRuntimeIsAskedOnce(t *testing.T) {
	dir := t.TempDir()
	asked, can := filepath.Join(dir, "asked"), filepath.Join(dir, "can")
	binary := filepath.Join(dir, "runc")
	script := "#!/bin/sh\necho x >> " + asked + "\n[ -e " + can + " ] || exit 1\n" +
		`echo '{"mountOptions":["rro"],"linux":{"namespaces":["user"],"mountExtensions":{"idmap":{"enabled":true}}}}'` + "\n"
	if err := os.WriteFile(binary, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	times := func() int {
		b, _ := os.ReadFile(asked)
		return len(b) / 2
	}
	h := pod.Handler{HostProcess: true, Options: pod.OptionsRunc, Binary: binary}
	handlers := map[string]pod.Handler{"a": h, "b": h}
	p := New(Config{
		Handlers:          handlers,
		RecursiveReadOnly: true,
		MapsOwners:        func(context.Context, string) (bool, error) { return true, nil },
		Logger:            slog.New(slog.DiscardHandler),
	})
	if err := p.UserNamespaces(t.Context(), "a"); err == nil || times() != 1 {
		t.Errorf("a runtime that fails: %v after %d questions", err, times())
	}
	if err := os.WriteFile(can, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var both sync.WaitGroup
	both.Go(func() { _ = p.RunFeatures(t.Context()) })
	both.Go(func() {
		for name := range handlers {
			if err := p.UserNamespaces(t.Context(), name); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	both.Wait()
	if times() != 2 || !p.Features("b").GetRecursiveReadOnlyMounts() || !p.Features("a").GetUserNamespaces() {
		t.Errorf("it was asked %d times, and once more after it had failed is enough", times())
	}
}

// Whoever asks stops waiting when his call ends, and whoever shares the question asks it himself.
func TestAQuestionOutlivesWhoeverAskedItFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		a := newAnswers(time.Minute, func(ctx context.Context, _ string) (int, error) {
			asked++
			select {
			case <-ctx.Done():
				return 0, ctx.Err()
			case <-time.After(time.Second):
				return asked, nil
			}
		})
		first, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if err := a.check(first, "x"); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		synctest.Wait()
		for range 3 {
			all.Go(func() {
				if got, err := a.of(t.Context(), "x"); got != 2 || err != nil {
					t.Errorf("%d, %v", got, err)
				}
			})
		}
		synctest.Wait()
		cancel()
		all.Wait()
	})
}
