// SPDX-License-Identifier: Apache-2.0

package daemon

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

	"berth/internal/pod"
	"berth/internal/spec"
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
			f := features{host: spec.Host{RecursiveReadOnly: kernel}, runtimes: &ociRuntimes{}}
			if f.of("runc").GetRecursiveReadOnlyMounts() {
				t.Error("advertised before the runtime was asked")
			}
			var w warnings
			go f.probe(t.Context(), handlers, w.log())
			synctest.Wait()
			for name := range handlers {
				if got, want := f.of(name).GetRecursiveReadOnlyMounts(), kernel && (name == "runc" || name == "path"); got != want {
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
		f := features{host: spec.Host{RecursiveReadOnly: true}, runtimes: &ociRuntimes{}}
		times := 0
		u := newUserNamespaces(handlers, "overlayfs", f.runtimes, func(context.Context, string) (bool, error) {
			if times++; times == 1 {
				return false, errors.New("containerd is away")
			}
			return true, nil
		})
		var w warnings
		log := w.log()
		var both sync.WaitGroup
		both.Go(func() { f.probe(t.Context(), handlers, log) })
		both.Go(func() { u.probe(t.Context(), func(ctx context.Context) error { return ctx.Err() }, log) })
		time.Sleep(time.Hour)
		if f.of("runc").GetRecursiveReadOnlyMounts() || u.known("runc") {
			t.Error("advertised although the runtime does not answer")
		}
		if len(w.errs["runc"]) != 2 {
			t.Errorf("one warning of each is enough: %q", w.errs)
		}
		if err := os.WriteFile(can, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		both.Wait() // both end once there is an answer
		if !f.of("runc").GetRecursiveReadOnlyMounts() || !u.known("runc") || times != 2 {
			t.Errorf("not advertised although the runtime has answered; asked for owners %d times", times)
		}
	})
}

// The answer that a handler cannot is final.
func TestARuntimeThatHasAnsweredIsNotAskedAgain(t *testing.T) {
	handlers := map[string]pod.Handler{"vm": {Options: pod.OptionsGeneric}}
	synctest.Test(t, func(t *testing.T) {
		u := newUserNamespaces(handlers, "overlayfs", &ociRuntimes{}, nil)
		began := time.Now()
		u.probe(t.Context(), func(ctx context.Context) error { return ctx.Err() }, slog.New(slog.DiscardHandler))
		(&features{}).probe(t.Context(), handlers, slog.New(slog.DiscardHandler))
		if u.known("vm") || !time.Now().Equal(began) {
			t.Error("it was asked again")
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
	runtimes := &ociRuntimes{}
	if _, err := runtimes.features(t.Context(), h); err == nil || times() != 1 {
		t.Errorf("a runtime that fails: %v after %d questions", err, times())
	}
	if err := os.WriteFile(can, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f := features{host: spec.Host{RecursiveReadOnly: true}, runtimes: runtimes}
	u := newUserNamespaces(handlers, "overlayfs", runtimes, func(context.Context, string) (bool, error) { return true, nil })
	var both sync.WaitGroup
	both.Go(func() {
		f.probe(t.Context(), handlers, slog.New(slog.DiscardHandler))
	})
	both.Go(func() {
		for name := range handlers {
			if err := u.check(t.Context(), name); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	both.Wait()
	if times() != 2 || !f.of("b").GetRecursiveReadOnlyMounts() || !u.known("a") {
		t.Errorf("it was asked %d times, and once more after it had failed is enough", times())
	}
}
