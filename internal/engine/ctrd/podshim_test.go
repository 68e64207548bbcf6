// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/base/connection"
	"berth/internal/engine/shims"
	"berth/internal/heart/pod"
	"berth/internal/host/pidfd"
	"berth/internal/host/pins"
	"berth/test/embedtest"
)

// onContainerd starts a containerd, whose directory of what is volatile is dir, and makes an
// adapter on it, with a handler that runs berth's runc.
func onContainerd(t *testing.T) (c *Containerd, h pod.Handler, dir string) {
	t.Helper()
	cfg := embedtest.Config(t)
	server := embedtest.Start(t, cfg)
	log := slog.New(slog.DiscardHandler)
	known := shims.New(shims.Config{Logger: log})
	c = New(connection.Through(server.Client()), Config{
		Owner:    "owner",
		Shims:    known,
		Cleanups: shims.NewCleanups(known, filepath.Join(cfg.State, "cleanup"), log),
		Logger:   log,
	})
	t.Cleanup(c.stop)
	return c, pod.Handler{
		Name:    "runc",
		Type:    "io.containerd.runc.v2",
		Binary:  filepath.Join(cfg.Libexec, "runc"),
		Root:    filepath.Join(cfg.State, "runc"),
		Options: pod.OptionsRunc,
	}, cfg.State
}

// The shim of a pod without a process is there until it is ended, and can be made again after it
// was killed. Nothing is left of it in the end.
func TestAShimOfAPodWithoutAProcess(t *testing.T) {
	c, h, dir := onContainerd(t)
	if ours, err := c.SandboxShim(t.Context(), h); err != nil || !ours {
		t.Fatalf("the shim can serve a pod without a process: %v, %v", ours, err)
	}
	request := pod.SandboxRequest{
		ID:        thisID,
		Handler:   h,
		CreatedAt: time.Now(),
		Spec:      &specs.Spec{Version: specs.Version, Linux: &specs.Linux{}},
	}
	for range 3 { // from the second on, the program that speeds clean-ups up is known
		try(t, c.CreateSandbox(t.Context(), thisID, h))
		try(t, c.StartShim(t.Context(), request))
		if err := c.StartShim(t.Context(), request); !errdefs.IsAlreadyExists(err) {
			t.Errorf("a second shim: %v", err)
		}
		if c.shims.HasEnded(thisID) {
			t.Fatal("the shim has ended")
		}
		first, err := pidfd.Open(shimOf(t, c, thisID))
		try(t, err)
		try(t, pidfd.Send(first, unix.SIGKILL))
		if pidfd.WaitEnd(t.Context(), first, time.Minute) != pidfd.Gone {
			t.Fatal("the shim does not end")
		}
		try(t, unix.Close(first))
		if !c.shims.HasEnded(thisID) {
			t.Fatal("the shim is not known")
		}
		if _, err := c.CreateTask(t.Context(), pod.TaskRequest{ID: otherID, Pod: thisID}); !errdefs.IsNotFound(err) {
			t.Errorf("a task of a pod whose shim has ended: %v", err)
		}
		try(t, c.StartShim(t.Context(), request)) // containerd is about to notice
		try(t, c.EndShim(t.Context(), thisID))
		if err := c.EndShim(t.Context(), thisID); !errdefs.IsNotFound(err) {
			t.Errorf("ended again: %v", err)
		}
		try(t, c.DeleteSandbox(t.Context(), thisID))
	}
	left, err := os.ReadDir(filepath.Join(dir, "io.containerd.sandbox.controller.v1.shim", connection.Namespace))
	if err != nil || len(left) > 0 {
		t.Errorf("bundles are left: %v %v", left, err)
	}
}

// A thread of the shim is in the network namespace of the pod, where a reader of /proc/PID/net
// finds the pod's interfaces. The shim's own namespace is the host's.
func TestAShimHasAThreadInTheNetworkOfItsPod(t *testing.T) {
	c, h, _ := onContainerd(t)
	request := pod.SandboxRequest{
		ID:        thisID,
		Handler:   h,
		CreatedAt: time.Now(),
		Spec:      &specs.Spec{Version: specs.Version, Linux: &specs.Linux{}},
	}
	nets, err := pins.NewNetworks(t.TempDir(), "test")
	try(t, err)
	netns := nets.PathFor(thisID)
	try(t, nets.Create(t.Context(), netns))
	defer func() { try(t, nets.Remove(context.Background(), netns)) }()
	for path, want := range map[string]bool{netns: true, filepath.Join(t.TempDir(), "none"): false, "": false} {
		request.NetNS = path
		try(t, c.CreateSandbox(t.Context(), thisID, request.Handler))
		try(t, c.StartShim(t.Context(), request))
		thread, err := c.NetworkThread(t.Context(), thisID)
		if want {
			try(t, err)
			if !sameNamespace(t, netns, "/proc/"+strconv.FormatUint(uint64(thread), 10)+"/ns/net") {
				t.Errorf("thread %d is in another network namespace", thread)
			}
		} else if !errdefs.IsNotFound(err) {
			t.Errorf("without a network namespace: %d, %v", thread, err)
		}
		if !sameNamespace(t, "/proc/self/ns/net", "/proc/"+strconv.Itoa(shimOf(t, c, thisID))+"/ns/net") {
			t.Error("the shim is not in the host's network namespace")
		}
		try(t, c.EndShim(t.Context(), thisID))
		if _, err := c.NetworkThread(t.Context(), thisID); !errdefs.IsNotFound(err) {
			t.Errorf("after its end: %v", err)
		}
		try(t, c.DeleteSandbox(t.Context(), thisID))
	}
}

// shimOf returns the process of the shim of a pod, as containerd knows it.
func shimOf(t *testing.T, c *Containerd, id string) int {
	t.Helper()
	st, err := sandboxer{c.PodShims, shimController}.Status(t.Context(), id)
	try(t, err)
	return int(st.Pid)
}

func sameNamespace(t *testing.T, one, two string) bool {
	t.Helper()
	a, err := os.Stat(one)
	try(t, err)
	b, err := os.Stat(two)
	try(t, err)
	return os.SameFile(a, b)
}
