// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// PROPERTIES 4: berth is killed while the OCI runtime is at work on a start, and the program has begun
// already. The OCI runtime was killed with it, so that the shim did not know of the start: the next
// berth killed the program, and started it a second time.
func TestAProgramIsNotStartedTwiceBecauseBerthWasKilled(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		dir := t.TempDir()
		wrapper, hang := filepath.Join(dir, "runc"), filepath.Join(dir, "hang")
		script := fmt.Sprintf("#!/bin/sh\nfor a in \"$@\"; do\n  [ \"$a\" != start ] || { %[1]s \"$@\"; code=$?; while [ -e %[2]s ]; do sleep 0.05; done; exit $code; }\ndone\nexec %[1]s \"$@\"\n",
			filepath.Join(node.Module(t), "build/libexec/runc"), hang)
		for path, text := range map[string]string{wrapper: script, hang: ""} {
			if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		n := node.Start(t, node.Options{Runc: wrapper, External: external, Args: append([]string{"--set", "runtimes.runc.start=oci"}, withoutPause...)})
		defer os.Remove(hang)
		marks := t.TempDir()
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		c := node.ContainerConfig("c", "sh", "-c", "echo begun >>/marks/begun; "+exitOnTerm)
		c.Mounts = []*runtimeapi.Mount{{HostPath: marks, ContainerPath: "/marks"}}
		id := n.Create(pod, cfg, c)
		begun := func() string {
			b, _ := os.ReadFile(filepath.Join(marks, "begun"))
			return string(b)
		}
		started := make(chan struct{})
		go func() {
			defer close(started)
			_, _ = n.StartContainer(context.WithoutCancel(t.Context()), &runtimeapi.StartContainerRequest{ContainerId: id})
		}()
		n.Until("the program has begun", func() bool { return begun() != "" })
		n.Berth.Kill(syscall.SIGKILL)
		if external {
			n.Containerd.Kill(syscall.SIGKILL)
			n.StartContainerd()
		}
		<-started
		n.StartBerth()
		if err := os.Remove(hang); err != nil {
			t.Fatal(err)
		}
		n.Until("it runs", func() bool {
			if n.Container(id).GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
				return true
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if _, err := n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
				t.Logf("asked for again: %v", err)
			}
			return false
		})
		n.Until("it is ready", func() bool { return n.Log(id) != "" })
		if got := begun(); got != "begun\n" {
			t.Errorf("the program began more than once: %q", got)
		}
		if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 100}); err != nil {
			t.Fatal(err)
		}
		node.ExpectExit(t, n.Container(id), 42, "Error")
	})
}

// PROPERTIES 71: pods that share a shim end while the OCI runtime makes containers of another one. The
// kernel killed it with the thread of the shim that had started it, if that thread had waited in
// the network namespace of one of these pods since: a StartError of a container that had nothing to
// do with them.
func TestTheEndOfAPodCutsOffNoStartOfAnother(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	wrapper, hang := filepath.Join(dir, "runc"), filepath.Join(dir, "hang")
	script := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *\" create \"*) echo >>%[1]s; while [ -s %[1]s ]; do sleep 0.05; done ;; esac\nexec %[2]s \"$@\"\n",
		hang, filepath.Join(node.Module(t), "build/libexec/runc"))
	if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	n := node.Start(t, node.Options{Runc: wrapper, Args: withoutPause})
	const containers, pods = 3, 6
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	var starts errgroup.Group
	defer os.Remove(hang)
	for i := range containers {
		id := n.Create(pod, cfg, node.ContainerConfig(fmt.Sprint("c", i), "sleep", "1000"))
		starts.Go(func() error {
			_, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
			return err
		})
	}
	n.Until("the OCI runtime makes the containers", func() bool {
		b, _ := os.ReadFile(hang)
		return len(b) == containers
	})
	var others []string
	for range pods {
		others = append(others, n.Pod(n.PodConfig()))
	}
	shims := n.Shims()
	for _, other := range others {
		if shims[other] != shims[pod] {
			t.Errorf("pod %s has a shim of its own", other)
		}
		if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: other}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(hang, 0); err != nil {
		t.Fatal(err)
	}
	if err := starts.Wait(); err != nil {
		t.Error(err)
	}
}

// The shim starts a container in the place of runc where nothing speaks against that. A setting,
// and whatever is not as usual, leaves that to runc, whose answer it is then.
func TestTheShimStartsContainersInThePlaceOfRunc(t *testing.T) {
	t.Parallel()
	const calls = "#!/bin/sh\necho \"$*\" >>\"$0.calls\"\n"
	const made = `for a; do case $before in --root) root=$a ;; --pid-file) file=$a ;; esac; before=$a; done
case " $* " in *" create "*) %[1]s "$@" || exit; pid=$(cat "$file")
%[2]s
exit ;; esac
`
	ways := []struct {
		name, more string // a line of configuration
		after      string // is done once a container is made
		starts     int    // of runc
		refused    string
	}{
		{name: "usual"},
		{name: "off", more: "start = 'oci'", starts: 1},
		{name: "late", after: "kill -STOP $pid; (sleep 0.3; kill -CONT $pid) >/dev/null 2>&1 &"},
		{name: "paused", after: "%[1]s --root $root pause $a", starts: 1, refused: "paused"},
	}
	dir, runc := t.TempDir(), filepath.Join(node.Module(t), "build/libexec/runc")
	config := ""
	for _, w := range ways {
		wrapper := filepath.Join(dir, w.name)
		script := calls
		if w.after != "" {
			script += fmt.Sprintf(made, runc, strings.ReplaceAll(w.after, "%[1]s", runc))
		}
		if err := os.WriteFile(wrapper, []byte(script+"exec "+runc+" \"$@\"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		config += fmt.Sprintf("[runtimes.%s]\ntype = 'io.containerd.runc.v2'\nhost_process = true\nbinary = %q\n%s\n", w.name, wrapper, w.more)
	}
	file := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	n := node.Start(t, node.Options{Args: append([]string{"--config", file}, withoutPause...)})
	n.Until("all OCI runtimes have answered", func() bool {
		st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{})
		return err == nil && !slices.ContainsFunc(st.GetRuntimeHandlers(), func(h *runtimeapi.RuntimeHandler) bool {
			return !h.GetFeatures().GetRecursiveReadOnlyMounts()
		})
	})
	for _, w := range ways {
		cfg := n.PodConfig()
		pod, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: w.name})
		if err != nil {
			t.Fatal(err)
		}
		id := n.Create(pod.GetPodSandboxId(), cfg, node.ContainerConfig("c", "sh", "-c", "echo begun; exit 3"))
		_, err = n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
		switch {
		case w.refused != "" && (err == nil || !strings.Contains(err.Error(), w.refused)):
			t.Errorf("%s: %v, want an error that says %q", w.name, err, w.refused)
		case w.refused == "" && err != nil:
			t.Errorf("%s: %v", w.name, err)
		case w.refused == "":
			node.ExpectExit(t, n.Ended(id), 3, "Error")
			if got := n.Log(id); got != "begun\n" {
				t.Errorf("%s: the log is %q", w.name, got)
			}
		}
		b, err := os.ReadFile(filepath.Join(dir, w.name) + ".calls")
		if got := strings.Count(string(b), " start "+id+"\n"); err != nil || got != w.starts {
			t.Errorf("%s: runc was asked %d times to start the container, want %d: %v", w.name, got, w.starts, err)
		}
	}
}
