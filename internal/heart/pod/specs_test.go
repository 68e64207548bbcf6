// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/internal/host/spec"
	"berth/test/world"
)

// recorder collects the events of units.
type recorder struct {
	mu     sync.Mutex
	events []event.Event
}

func (r *recorder) Note(_ string, e event.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// has reports whether there was an event.
func (r *recorder) has(e event.Event) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.events, func(other event.Event) bool { return reflect.DeepEqual(e, other) })
}

// A host_path on a file system that does not answer is named: to a caller whose deadline passes, in
// the timeline, and in the error of the creation.
func TestAHostPathThatDoesNotAnswerIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := &recorder{}
		b := start(t, world.Free(), state.Loaded{}, func(p *pod.Ports) { p.Observer = events })
		p := b.pod("p1", "")
		cfg := ctr("c1")
		cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/data", HostPath: "/mnt/dead"}}
		answer := b.Hold("host-path", "/mnt/dead")
		for range 2 { // the call of a kubelet, and its retry
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
			_, err := b.CreateContainer(ctx, p, cfg)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "host_path /mnt/dead") {
				t.Errorf("at the deadline of the call: %v", err)
			}
		}
		if !events.has(event.HostPathSilent{Path: "/mnt/dead"}) {
			t.Errorf("the timeline has %q", events.events)
		}
		_, err := b.CreateContainer(t.Context(), p, cfg)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "mount /data") {
			t.Errorf("at the end of the creation: %v", err)
		}
		answer()
		if _, err := b.CreateContainer(t.Context(), p, cfg); err != nil {
			t.Error(err)
		}
	})
}

// What was looked at was not what was read: the file was named twice. What takes the place of a
// profile neither hangs berth nor fills its memory.
func TestASeccompProfileIsAFileOfABoundedSize(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("good", `{"defaultAction": "SCMP_ACT_ALLOW"}`)
	write("large", strings.Repeat(" ", spec.MaxSeccomp+1))
	if err := os.Symlink("good", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"good", "link"} {
		if p, err := pod.LoadSeccomp(dir + "/" + name); err != nil || p.DefaultAction != "SCMP_ACT_ALLOW" {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
	for _, path := range []string{dir + "/large", dir + "/fifo", dir, dir + "/absent", "/dev/zero", "good"} {
		if _, err := pod.LoadSeccomp(path); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
	// A file of the kernel says that it is empty, and is not: its size does not bound it.
	if _, err := pod.LoadSeccomp("/proc/self/maps"); err == nil || strings.Contains(err.Error(), "regular") {
		t.Errorf("%v", err)
	}
}
