// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/test/client"
)

var discard = slog.New(slog.DiscardHandler)

// node is a containerd with the containers c1 and c2, which run in the pod p1, and c3 in the pod
// p2. What is done to another one than c1 is noted, and fails, with its ID: "pause c2".
type node struct {
	mu      sync.Mutex
	paused  map[string]bool
	frozen  map[string]bool // cgroups
	did     []string
	fail    map[string]error
	hang    map[string]bool
	target  pod.Target
	service *Service
	dir     string
	ended   chan struct{}
	stop    chan struct{}

	stopSide chan struct{} // a stop of the others
}

func newNode(t *testing.T) *node {
	ended, stop := make(chan struct{}), make(chan struct{})
	n := &node{
		stopSide: make(chan struct{}),
		ended:    ended,
		stop:     stop,
		paused:   map[string]bool{},
		frozen:   map[string]bool{},
		fail:     map[string]error{},
		hang:     map[string]bool{},
		target: pod.Target{
			ID:       "c1",
			PodID:    "p1",
			Running:  true,
			Handler:  pod.Handler{Name: "runc", Type: "io.containerd.runc.v2", HostProcess: true},
			Process:  state.Process{Cgroup: "/cg/c1"},
			Ended:    ended,
			Stopping: stop,
			Config:   containerNamed("web"),
		},
		dir: t.TempDir(),
	}
	n.start()
	return n
}

// start makes the Service of a berth that starts.
func (n *node) start() {
	n.service = New(Config{
		Dir:     filepath.Join(n.dir, "checkpoints"),
		Pods:    n,
		Runtime: n,
		Thaw:    n.thaw,
		Logger:  discard,
	})
}

func (n *node) step(ctx context.Context, what string) error {
	n.mu.Lock()
	n.did = append(n.did, what)
	hang, err := n.hang[what], n.fail[what]
	n.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (n *node) stepOf(ctx context.Context, what, id string) error {
	if id != "c1" {
		what += " " + id
	}
	return n.step(ctx, what)
}

func (n *node) Target(id string) (pod.Target, error) {
	switch id {
	case "c2", "c3":
		t := n.target
		t.ID, t.Process.Cgroup, t.Ended, t.Config = id, "/cg/"+id, make(chan struct{}), containerNamed("side")
		t.Stopping = n.stopSide
		if id == "c3" {
			t.PodID = "p2"
		}
		return t, nil
	case "c1":
		n.mu.Lock()
		defer n.mu.Unlock()
		if err := n.fail["target"]; err != nil {
			return pod.Target{}, err
		}
		return n.target, nil
	case "p1":
		return pod.Target{ID: "p1", PodID: "p1", Running: true, Handler: n.target.Handler, PodConfig: podNamed("p")}, nil
	}
	return pod.Target{}, errdefs.ErrNotFound
}

func (n *node) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
		Id:       id,
		Metadata: &runtimeapi.ContainerMetadata{Name: "web"},
		Image:    &runtimeapi.ImageSpec{Image: "img:1"},
		ImageRef: "img@sha256:1",
	}}, nil
}

func (n *node) PauseTask(ctx context.Context, id string) (asked bool, err error) {
	n.mu.Lock()
	already := n.paused[id]
	n.mu.Unlock()
	if already {
		return false, errdefs.ErrFailedPrecondition
	}
	if err := n.stepOf(ctx, "pause", id); err != nil {
		return true, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.paused[id] = true
	return true, nil
}

func (n *node) thaw(cgroup string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.frozen, cgroup)
	return nil
}

func (n *node) isFrozen(cgroup string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.frozen[cgroup]
}

func (n *node) ResumeTask(ctx context.Context, id string) error {
	if err := n.stepOf(ctx, "resume", id); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.paused, id)
	return nil
}

func (n *node) CheckpointTask(ctx context.Context, id, images, work string) error {
	if err := n.stepOf(ctx, "checkpoint", id); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(images, "core-1.img"), []byte(core(byte(machines[runtime.GOARCH]))), 0o644),
		os.WriteFile(filepath.Join(images, "inventory.img"), []byte("inventory"), 0o644),
		os.WriteFile(filepath.Join(images, "pages-1.img"), []byte("memory"), 0o644),
		os.Symlink("/etc/shadow", filepath.Join(images, "link")),
		os.WriteFile(filepath.Join(work, "dump.log"), []byte("dumped"), 0o644),
	)
}

func (n *node) WriteChanges(ctx context.Context, _, key string, w io.Writer) error {
	if err := n.stepOf(ctx, "changes", key); err != nil {
		return err
	}
	_, err := w.Write([]byte("changed"))
	return err
}

func (n *node) Spec(ctx context.Context, id string) (*specs.Spec, error) {
	return &specs.Spec{Annotations: map[string]string{"io.kubernetes.cri.container-name": "web"}}, n.stepOf(ctx, "spec", id)
}

// expectNothingLeft fails if the container is paused, or a directory is left.
func (n *node) expectNothingLeft(t *testing.T) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.paused)+len(n.frozen) > 0 {
		t.Errorf("paused: %v, frozen: %v", n.paused, n.frozen)
	}
	if left, err := os.ReadDir(filepath.Join(n.dir, "checkpoints")); err == nil && len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// PROPERTIES 43: a checkpoint reads all of a container's memory, and was in no record of accesses.
// One that cannot be put on record does not happen.
func TestACheckpointIsOnRecordBeforeItBegins(t *testing.T) {
	n := newNode(t)
	full := errors.New("the disk is full")
	refusal := full
	var said []string
	n.service.cfg.Begin = func(_ context.Context, t pod.Target, location string) (func(error), error) {
		said = append(said, fmt.Sprintf("began %s %s", t.ID, filepath.Base(location)))
		return func(err error) { said = append(said, fmt.Sprint("ended ", err)) }, refusal
	}
	location := filepath.Join(n.dir, "c1.tar")
	if err := n.service.Checkpoint(t.Context(), "c1", location, 0); !errors.Is(err, full) || len(n.did) > 0 {
		t.Errorf("got %v, and %q was done", err, n.did)
	}
	refusal = nil
	if err := n.service.Checkpoint(t.Context(), "c1", location, 0); err != nil {
		t.Error(err)
	}
	if want := []string{"began c1 c1.tar", "began c1 c1.tar", "ended <nil>"}; !slices.Equal(said, want) {
		t.Errorf("got %q", said)
	}
}

func TestACheckpointIsAnArchiveForRootAlone(t *testing.T) {
	n := newNode(t)
	n.target.PodConfig = &runtimeapi.PodSandboxConfig{LogDirectory: n.dir}
	n.target.Config = &runtimeapi.ContainerConfig{LogPath: "0.log"}
	if err := os.WriteFile(filepath.Join(n.dir, "0.log"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	location := filepath.Join(n.dir, "c1.tar")
	if err := n.service.Checkpoint(t.Context(), "c1", location, 0); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Lstat(location); err != nil || st.Mode() != 0o600 {
		t.Errorf("%v %v", st.Mode(), err)
	}
	got := client.Archive(t, location)
	for name, want := range map[string]string{
		"checkpoint/pages-1.img": "memory",
		"dump.log":               "dumped",
		"rootfs-diff.tar":        "changed",
		"container.log":          "hello",
	} {
		if got[name] != want {
			t.Errorf("%s has %q", name, got[name])
		}
	}
	if _, ok := got["checkpoint/link"]; ok {
		t.Error("a symbolic link was followed")
	}
	var c config
	if err := json.Unmarshal([]byte(got["config.dump"]), &c); err != nil || c.ID != "c1" || c.Name != "web" || c.RootfsImageName != "img:1" || c.CheckpointTime.IsZero() {
		t.Errorf("%+v %v", c, err)
	}
	for _, name := range []string{"spec.dump", "status", "status.dump"} {
		if !json.Valid([]byte(got[name])) {
			t.Errorf("%s is %q", name, got[name])
		}
	}
	if want := []string{"spec", "pause", "checkpoint", "changes", "resume"}; !slices.Equal(n.did, want) {
		t.Errorf("the steps were %q, want %q", n.did, want)
	}
	n.expectNothingLeft(t)
}

// What is there already is left alone, whatever it is, also if it appears meanwhile.
func TestACheckpointReplacesNothing(t *testing.T) {
	n := newNode(t)
	file, link, dangling, elsewhere := filepath.Join(n.dir, "file"), filepath.Join(n.dir, "link"), filepath.Join(n.dir, "dangling"), filepath.Join(n.dir, "elsewhere")
	for _, err := range []error{
		os.WriteFile(file, []byte("precious"), 0o600), os.Symlink(file, link), os.Symlink(elsewhere, dangling),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, location := range []string{file, link, dangling, n.dir} {
		if err := n.service.Checkpoint(t.Context(), "c1", location, 0); !errdefs.IsAlreadyExists(err) {
			t.Errorf("%s: %v", location, err)
		}
		if err := publish(location, func(w io.Writer) error { _, err := w.Write([]byte("x")); return err }); !errdefs.IsAlreadyExists(err) {
			t.Errorf("%s: %v", location, err)
		}
	}
	if b, _ := os.ReadFile(file); string(b) != "precious" {
		t.Errorf("%q", b)
	}
	if _, err := os.Lstat(elsewhere); !errors.Is(err, os.ErrNotExist) {
		t.Error("a symbolic link was followed")
	}
	if len(n.did) != 0 {
		t.Errorf("%q", n.did)
	}
}

func TestCheckpointsThatCannotBe(t *testing.T) {
	n := newNode(t)
	good := filepath.Join(n.dir, "c1.tar")
	ended := n.target
	ended.Running = false
	vm := n.target
	vm.Handler = pod.Handler{Name: "kata"}
	for _, tt := range []struct {
		name     string
		target   pod.Target
		id       string
		location string
		is       func(error) bool
	}{
		{"absent", n.target, "c9", good, func(err error) bool {
			return errdefs.IsNotFound(err) && err.Error() == `checkpoint container "c9": not found`
		}},
		{"a sandbox", n.target, "p1", good, errdefs.IsNotFound},
		{"relative", n.target, "c1", "c1.tar", errdefs.IsInvalidArgument},
		{"not clean", n.target, "c1", n.dir + "/../x", errdefs.IsInvalidArgument},
		{"no directory", n.target, "c1", "/nonexistent/c1.tar", errdefs.IsInvalidArgument},
		{"ended", ended, "c1", good, errdefs.IsFailedPrecondition},
		{"a virtual machine", vm, "c1", good, errdefs.IsFailedPrecondition},
	} {
		n.target = tt.target
		if err := n.service.Checkpoint(t.Context(), tt.id, tt.location, 0); !tt.is(err) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if len(n.did) != 0 {
		t.Errorf("%q", n.did)
	}
}

// PROPERTIES 28: whatever step fails, the container goes on and nothing is left, and the error is
// that of the step.
func TestACheckpointThatFailsLeavesNothing(t *testing.T) {
	for _, step := range []string{"spec", "pause", "checkpoint", "changes"} {
		n := newNode(t)
		n.fail[step] = errdefs.ErrFailedPrecondition
		location := filepath.Join(n.dir, "c1.tar")
		if err := n.service.Checkpoint(t.Context(), "c1", location, 0); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v", step, err)
		}
		if _, err := os.Lstat(location); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: there is an archive", step)
		}
		n.expectNothingLeft(t)
	}
}

// A checkpoint ends with its timeout, and with its container; while it is made there is no other.
func TestACheckpointIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.hang["checkpoint"] = true
		location := filepath.Join(n.dir, "c1.tar")
		began := time.Now()
		first := make(chan error, 1)
		go func() { first <- n.service.Checkpoint(t.Context(), "c1", location, 7*time.Second) }()
		synctest.Wait()
		if err := n.service.Checkpoint(t.Context(), "c1", location, 0); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "another") {
			t.Errorf("a second one: %v", err)
		}
		if err := <-first; !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 7*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		n.expectNothingLeft(t)

		began = time.Now()
		go func() { first <- n.service.Checkpoint(t.Context(), "c1", location, 0) }()
		synctest.Wait()
		close(n.ended)
		if err := <-first; !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "ended") || time.Since(began) != 0 {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		n.expectNothingLeft(t)
	})
}

// On cgroup v1 a process that is frozen does not end, whatever signal it gets: a stop waited until
// the checkpoint had ended. PROPERTIES 1.
func TestAStopEndsACheckpoint(t *testing.T) {
	for _, shimHangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.frozen["/cg/c1"] = true
			n.hang["checkpoint"], n.hang["resume"] = true, shimHangs
			location := filepath.Join(n.dir, "c1.tar")
			first := make(chan error, 1)
			began := time.Now()
			go func() { first <- n.service.Checkpoint(t.Context(), "c1", location, 0) }()
			synctest.Wait()
			close(n.stop)
			err := <-first
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "stop") {
				t.Errorf("the shim hangs: %v: %v", shimHangs, err)
			}
			if took := time.Since(began); took > stopPatience || len(n.frozen) > 0 {
				t.Errorf("the shim hangs: %v: after %v these are frozen: %v", shimHangs, took, n.frozen)
			}
			if !shimHangs {
				n.expectNothingLeft(t)
			}
			// None is begun while the stop is in flight.
			n.mu.Lock()
			n.did = nil
			n.mu.Unlock()
			if err := n.service.Checkpoint(t.Context(), "c1", location, 0); !errdefs.IsFailedPrecondition(err) || slices.Contains(n.did, "pause") {
				t.Errorf("the shim hangs: %v: %v, %q", shimHangs, err, n.did)
			}
		})
	}
}

// A stop that is asked for while the container is resumed does not wait for the shim either.
func TestAStopEndsTheWaitForAResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.frozen["/cg/c1"] = true
		n.fail["checkpoint"], n.hang["resume"] = errdefs.ErrUnavailable, true
		first := make(chan error, 1)
		began := time.Now()
		go func() { first <- n.service.Checkpoint(t.Context(), "c1", filepath.Join(n.dir, "c1.tar"), 0) }()
		time.Sleep(2 * time.Second)
		close(n.stop)
		err := <-first
		if took := time.Since(began); took > 2*time.Second+stopPatience || len(n.frozen) > 0 {
			t.Errorf("after %v these are frozen: %v; %v", took, n.frozen, err)
		}
	})
}

// A call to pause the container that is cut off has frozen its processes, and the shim does not
// know.
func TestAPauseThatWasCutOffIsUndone(t *testing.T) {
	n := newNode(t)
	n.frozen["/cg/c1"] = true
	n.fail["pause"] = context.DeadlineExceeded
	if err := n.service.Checkpoint(t.Context(), "c1", filepath.Join(n.dir, "c1.tar"), 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	n.expectNothingLeft(t)
}

// A container that somebody else has paused is not resumed.
func TestAContainerThatIsPausedAlreadyStaysPaused(t *testing.T) {
	n := newNode(t)
	n.paused["c1"], n.frozen["/cg/c1"] = true, true
	if err := n.service.Checkpoint(t.Context(), "c1", filepath.Join(n.dir, "c1.tar"), 0); !errdefs.IsFailedPrecondition(err) {
		t.Error(err)
	}
	if !n.paused["c1"] || !n.frozen["/cg/c1"] {
		t.Error("it was resumed")
	}
	clear(n.paused)
	clear(n.frozen)
	n.expectNothingLeft(t)
}

// A shim that hangs was a line in the log every second. PROPERTIES 12.
func TestAContainerThatStaysPausedDoesNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		if err := os.MkdirAll(filepath.Join(n.dir, "checkpoints", "c1"), 0o700); err != nil {
			t.Fatal(err)
		}
		n.fail["resume"] = errdefs.ErrUnavailable
		var log bytes.Buffer
		n.service.paused.cfg.logger = slog.New(slog.NewTextHandler(&log, nil))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = n.service.Run(ctx) })
		time.Sleep(10*time.Minute - time.Second)
		cancel()
		wg.Wait()
		if lines, tries := bytes.Count(log.Bytes(), []byte("level=WARN")), len(n.did); lines != 10 || tries < 500 {
			t.Errorf("%d lines for %d attempts in ten minutes", lines, tries)
		}
	})
}

// PROPERTIES 28: berth is killed while the container is paused: the next berth lets it go on, and
// tries until it can.
func TestAContainerIsNotLeftPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		if err := os.MkdirAll(filepath.Join(n.dir, "checkpoints", "c1", "checkpoint"), 0o700); err != nil {
			t.Fatal(err)
		}
		n.paused["c1"] = true
		n.fail["resume"], n.fail["target"] = errdefs.ErrUnavailable, errdefs.ErrFailedPrecondition // its record is damaged
		n.start()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = n.service.Run(ctx) })
		time.Sleep(time.Minute)
		n.mu.Lock()
		if !n.paused["c1"] {
			t.Error("it goes on, although nobody could resume it")
		}
		delete(n.fail, "resume")
		n.mu.Unlock()
		time.Sleep(2 * time.Second)
		n.mu.Lock()
		if n.paused["c1"] {
			t.Error("it stays paused because its record is damaged")
		}
		delete(n.fail, "target")
		n.mu.Unlock()
		time.Sleep(2 * time.Second)
		n.expectNothingLeft(t)
		// The same for one that this berth could not resume.
		n.mu.Lock()
		n.fail["resume"] = errdefs.ErrUnavailable
		n.mu.Unlock()
		if err := n.service.Checkpoint(ctx, "c1", filepath.Join(n.dir, "c1.tar"), 0); !errdefs.IsUnavailable(err) {
			t.Errorf("%v", err)
		}
		n.mu.Lock()
		delete(n.fail, "resume")
		n.mu.Unlock()
		time.Sleep(3 * time.Second)
		n.expectNothingLeft(t)
		cancel()
		wg.Wait()
	})
}

// PROPERTIES 1 and 28: of the containers that a berth which was killed has paused, one whose shim
// hangs keeps no other one paused.
func TestAShimThatHangsKeepsNoOtherContainerPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		for _, id := range []string{"c1", "c2"} {
			if err := os.MkdirAll(filepath.Join(n.dir, "checkpoints", id), 0o700); err != nil {
				t.Fatal(err)
			}
			n.paused[id] = true
		}
		n.hang["resume"] = true
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = n.service.Run(ctx) })
		synctest.Wait()
		n.mu.Lock()
		if n.paused["c2"] || !n.paused["c1"] {
			t.Errorf("paused: %v", n.paused)
		}
		n.mu.Unlock()
		cancel()
		wg.Wait()
	})
}
