// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"

	"berth/internal/engine/embed"
	"berth/test/embedtest"
)

// PROPERTIES 50: a server that starts cleaned up after a container by the program of its sandbox, and not
// by that which the container was made with, so that the death of a shim ended all that it served.
func TestATaskIsTakenUpWithTheProgramThatItWasMadeWith(t *testing.T) {
	cfg := embedtest.Config(t)
	ctx := k8s(t)
	dir := t.TempDir()
	asked := filepath.Join(dir, "asked")
	program := func(name string) string {
		path := filepath.Join(dir, name)
		text := "#!/bin/sh\necho \"${0##*/} $*\" >>'" + asked + "'\nprintf '\\020\\377\\001'\n"
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first, err := embed.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Stop()
	shim := makeSandbox(t, ctx, first, "p1")
	defer func() { _ = unix.Kill(shim, unix.SIGKILL) }()
	// The first is made with a program of its own, and the second with the handler's.
	pids := map[string]int{}
	for id, runtime := range map[string]string{"c1": program("own"), "c2": "io.containerd.runc.v2"} {
		task := run(t, ctx, first, cfg, id, "sleep 1000", containerd.WithSandbox("p1"), withRuntime(cfg, runtime))
		if err := task.Start(ctx); err != nil {
			t.Fatal(err)
		}
		pids[id] = int(task.Pid())
	}
	defer func() {
		for id := range pids {
			out, err := exec.Command(filepath.Join(cfg.Libexec, "runc"), "--root", "/run/containerd/runc/"+embed.Namespace, "delete", "--force", id).CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}
	}()
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	again := program("again")
	var mu sync.Mutex
	cfg.Program = func(_ context.Context, pod string, pid int, kind string, options typeurl.Any) string {
		mu.Lock()
		defer mu.Unlock()
		if pod != "p1" || pid != shim || kind != "io.containerd.runc.v2" {
			t.Errorf("asked for pod %s with shim %d, which is %d, and runtime %s with options %v", pod, pid, shim, kind, options)
		}
		return again
	}
	s := embedtest.Start(t, cfg)
	s.Adopt()
	for _, id := range []string{"p1", "c1", "c2"} {
		until(t, id+" is loaded", func() bool { return !s.SetAside(ctx, id) })
	}
	if err := unix.Kill(shim, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for id := range pids {
		until(t, "containerd has cleaned up after "+id, func() bool {
			_, err := os.Stat(cfg.State + "/io.containerd.runtime.v2.task/k8s.io/" + id)
			return errors.Is(err, fs.ErrNotExist)
		})
	}
	b, err := os.ReadFile(asked)
	if err != nil {
		t.Fatal(err)
	}
	for id, name := range map[string]string{"c1": "own", "c2": "again"} {
		by := ""
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, " -id "+id+" ") {
				by, _, _ = strings.Cut(line, " ")
			}
		}
		if by != name {
			t.Errorf("%q has cleaned up after %s, and not %q: %s", by, id, name, b)
		}
		if err := unix.Kill(pids[id], 0); err != nil {
			t.Errorf("the process of %s: %v", id, err)
		}
	}
}
