// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"berth/internal/engine/embed"
	"berth/test/embedtest"

	"github.com/containerd/containerd/api/types/runc/options"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"
)

func k8s(t testing.TB) context.Context {
	return namespaces.WithNamespace(t.Context(), embed.Namespace)
}

func TestClientWorksInMemoryAndThroughTheSocket(t *testing.T) {
	s := embedtest.Start(t, embedtest.Config(t))
	ctx := k8s(t)
	c := s.Client()

	// In memory.
	if got, err := c.Containers(ctx); err != nil || len(got) != 0 {
		t.Errorf("containers = %v, %v, want none", got, err)
	}
	if got, err := c.ListImages(ctx); err != nil || len(got) != 0 {
		t.Errorf("images = %v, %v, want none", got, err)
	}
	if c.SnapshotService(s.Snapshotter()) == nil || c.TransferService() == nil || c.MountManager() == nil {
		t.Error("a service is missing")
	}

	// What a client has no in-memory service for.
	v, err := c.Version(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if v.Version == "" {
		t.Error("version is empty")
	}
	if serving, err := c.IsServing(ctx); err != nil || !serving {
		t.Errorf("serving = %v, %v", serving, err)
	}
	if _, err := c.SandboxController("shim").Metrics(ctx, "none"); !errdefs.IsNotFound(err) {
		t.Errorf("metrics of no sandbox: %v, want not found", err)
	}

	// As ctr does.
	other, err := containerd.New(s.Address(), containerd.WithDefaultNamespace(embed.Namespace))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.Containers(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestEveryLoadedPartIsHealthyAndNoneIsForeign(t *testing.T) {
	s := embedtest.Start(t, embedtest.Config(t))
	list, err := s.Client().IntrospectionService().Plugins(k8s(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Plugins {
		if p.InitErr != nil {
			t.Errorf("%s.%s: %s", p.Type, p.ID, p.InitErr.Message)
		}
		for _, unwanted := range []string{"cri", "nri", "restart", "grpc-tcp", "grpc-prometheus"} {
			if p.ID == unwanted || strings.Contains(p.Type, "."+unwanted+".") {
				t.Errorf("%s.%s is loaded", p.Type, p.ID)
			}
		}
	}
	if len(list.Plugins) == 0 {
		t.Error("no parts")
	}
}

// State and root directories readable or traversable by others:
// CVE-2021-41103, CVE-2024-25621. Shim sockets in reach: CVE-2020-15257.
func TestDirectoriesAndSocketsAreClosedToOthers(t *testing.T) {
	cfg := embedtest.Config(t)
	for _, dir := range []string{cfg.Root, cfg.State, cfg.SocketDir} {
		if err := os.MkdirAll(dir, 0o777); err != nil { // an older installation's
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	s := embedtest.Start(t, cfg)
	for path, want := range map[string]fs.FileMode{
		cfg.Root:               0o700 | fs.ModeDir,
		cfg.State:              0o711 | fs.ModeDir,
		cfg.SocketDir:          0o700 | fs.ModeDir,
		s.Address():            0o600 | fs.ModeSocket,
		s.Address() + ".ttrpc": 0o600 | fs.ModeSocket,
		cfg.Root + "/lock":     0o600,
		cfg.State + "/lock":    0o600,
	} {
		fi, err := os.Stat(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if fi.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, fi.Mode(), want)
		}
	}
}

func TestProcessIsNoSubreaper(t *testing.T) {
	embedtest.Start(t, embedtest.Config(t))
	var on int
	if err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&on)), 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if on != 0 {
		t.Error("the process became a child subreaper")
	}
}

func TestStartStopStart(t *testing.T) {
	cfg := embedtest.Config(t)
	ctx := k8s(t)
	for i := range 3 {
		s, err := embed.Start(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Stop() }) // if the test ends early
		_, err = s.Client().LeasesService().Create(ctx, leases.WithRandomID())
		if err != nil {
			t.Fatal(err)
		}
		list, err := s.Client().LeasesService().List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) != i+1 {
			t.Errorf("start %d: %d leases, want %d: the metadata did not last", i+1, len(list), i+1)
		}
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := s.Stop(); err != nil {
			t.Errorf("second stop: %v", err)
		}
		if _, err := net.Dial("unix", s.Address()); err == nil {
			t.Error("the socket still answers after Stop")
		}
	}
}

func TestSecondServerInTheProcessIsRefused(t *testing.T) {
	first := embedtest.Config(t)
	embedtest.Start(t, first)
	_, err := embed.Start(t.Context(), embedtest.Config(t))
	if !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("second start: %v, want failed precondition", err)
	}
	if !strings.Contains(err.Error(), first.Root) {
		t.Errorf("%q does not name the first one's directory", err)
	}
}

// The holder is this process with a lock of its own, as another berth would have it.
func TestDirectoryInUseIsRefusedAtOnce(t *testing.T) {
	for _, which := range []string{"Root", "State"} {
		t.Run(which, func(t *testing.T) {
			cfg := embedtest.Config(t)
			dir := cfg.Root
			if which == "State" {
				dir = cfg.State
			}
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			f, err := os.Create(filepath.Join(dir, "lock"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteString("4242\n"); err != nil {
				t.Fatal(err)
			}
			_, err = embed.Start(t.Context(), cfg)
			if !errdefs.IsFailedPrecondition(err) {
				t.Fatalf("start: %v, want failed precondition", err)
			}
			for _, word := range []string{dir, "4242"} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not name %s", err, word)
				}
			}
			f.Close()
			embedtest.Start(t, cfg) // nothing of the failed start is in the way
		})
	}
}

// containerd's default is to wait for ever.
func TestDatabaseHeldByAForeignContainerdFailsTheStart(t *testing.T) {
	cfg := embedtest.Config(t)
	dir := filepath.Join(cfg.Root, "io.containerd.metadata.v1.bolt")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(filepath.Join(dir, "meta.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	_, err = embed.Start(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), cfg.Root) || !strings.Contains(err.Error(), "another containerd") {
		t.Fatalf("start = %v, want an error that says who is in the way", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	embedtest.Start(t, cfg)
}

func TestStartIsBoundedByItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cfg := embedtest.Config(t)
	if _, err := embed.Start(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Fatalf("start = %v, want canceled", err)
	}
	embedtest.Start(t, cfg)
}

func TestServerOutlivesTheContextOfItsStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s, err := embed.Start(ctx, embedtest.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	cancel()
	if _, err := s.Client().LeasesService().Create(k8s(t), leases.WithRandomID()); err != nil {
		t.Error(err)
	}
	if serving, err := s.Client().IsServing(k8s(t)); err != nil || !serving {
		t.Errorf("serving = %v, %v", serving, err)
	}
}

func TestConfigThatCannotWorkIsRefused(t *testing.T) {
	logger := slog.New(slog.DiscardHandler)
	long := "/" + strings.Repeat("d", 90)
	for name, cfg := range map[string]embed.Config{
		"no root":              {State: "/s", Logger: logger},
		"relative state":       {Root: "/r", State: "s", Logger: logger},
		"root is state":        {Root: "/r", State: "/r/", Logger: logger},
		"state too long":       {Root: "/r", State: long, SocketDir: "/s", Logger: logger},
		"sockets too long":     {Root: "/r", State: "/s", SocketDir: long, Logger: logger},
		"unknown snapshotter":  {Root: "/r", State: "/s", Snapshotter: "zfs", Logger: logger},
		"no logger":            {Root: "/r", State: "/s"},
		"relative socket path": {Root: "/r", State: "/s", SocketDir: "x", Logger: logger},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := embed.Start(t.Context(), cfg); !errdefs.IsInvalidArgument(err) {
				t.Errorf("start = %v, want invalid argument", err)
			}
		})
	}
}

func TestLogIsBridgedWithLevelsAndFields(t *testing.T) {
	defer embed.BridgeLog(slog.New(slog.DiscardHandler), false)
	var out bytes.Buffer
	embed.BridgeLog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})), false)
	log.L.WithError(errors.New("boom")).WithField("id", "c1").Warn("shim gone")
	log.L.Debug("hidden")
	log.L.Info("connecting to shim c1")
	log.L.Info("shim disconnected") // at each end of a shim, of which berth has an event
	embed.BridgeLog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})), true)
	log.L.Debug("shown")
	log.L.Fatal("ends nothing")
	for _, want := range []string{
		`level=WARN msg="shim gone" component=containerd error=boom id=c1`,
		`level=DEBUG msg=shown`,
		`level=DEBUG msg="shim disconnected"`,
		`level=DEBUG msg="connecting to shim c1"`,
		`level=ERROR msg="ends nothing"`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "hidden") {
		t.Errorf("a debug line came through in\n%s", &out)
	}
}

func TestBrokenListenerIsReported(t *testing.T) {
	s := embedtest.Start(t, embedtest.Config(t))
	fatal := log.L.WithError(net.ErrClosed).Fatal // what containerd calls when a listener breaks
	fatal("serve failure")
	if err := <-s.Failed(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("failed = %v, want the cause", err)
	}
}

func TestContainerRunsAndIsDeleted(t *testing.T) {
	cfg := embedtest.Config(t)
	s := embedtest.Start(t, cfg)
	ctx := k8s(t)
	task := run(t, ctx, s, cfg, "c1", "exit 42")
	exited, err := task.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if got := (<-exited).ExitCode(); got != 42 {
		t.Errorf("exit code = %d, want 42", got)
	}
	remove(t, ctx, s, "c1")
	if left, err := os.ReadDir(filepath.Join(cfg.State, "io.containerd.runtime.v2.task", embed.Namespace)); err != nil || len(left) != 0 {
		t.Errorf("bundles left: %v, %v", left, err)
	}
}

func TestRunningTaskOutlivesStopAndIsFoundAgain(t *testing.T) {
	cfg := embedtest.Config(t)
	ctx := k8s(t)

	first, err := embed.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Stop()
	task := run(t, ctx, first, cfg, "c1", "trap 'exit 7' TERM; while :; do sleep 0.05; done")
	if err := task.Start(ctx); err != nil {
		t.Fatal(err)
	}
	pid := task.Pid()
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(int(pid), 0); err != nil {
		t.Fatalf("container process %d after stop: %v", pid, err)
	}

	second := embedtest.Start(t, cfg)
	second.Adopt()
	until(t, "the task is loaded", func() bool { return !second.SetAside(ctx, "c1") })
	c, err := second.Client().LoadContainer(ctx, "c1")
	if err != nil {
		t.Fatal(err)
	}
	task, err = c.Task(ctx, cio.Load)
	if err != nil {
		t.Fatal(err)
	}
	if task.Pid() != pid {
		t.Errorf("pid = %d, was %d", task.Pid(), pid)
	}
	exited, err := task.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	events, errs := second.Client().Subscribe(ctx, `topic=="/tasks/exit"`)
	if err := task.Kill(ctx, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := (<-exited).ExitCode(); got != 137 {
		t.Errorf("exit code = %d, want 137", got)
	}
	// The shim, started by the first server, finds the second one's socket.
	select {
	case <-events:
	case err := <-errs:
		t.Errorf("event stream: %v", err)
	}
	remove(t, ctx, second, "c1")
}

// run makes a container with a task that runs script, not started.
func run(t *testing.T, ctx context.Context, s *embed.Server, cfg embed.Config, id, script string, more ...containerd.NewContainerOpts) containerd.Task {
	t.Helper()
	opts := append([]containerd.NewContainerOpts{withRuntime(cfg, "io.containerd.runc.v2")}, more...)
	c, err := s.Client().NewContainer(ctx, id, append(opts,
		containerd.WithNewSpec(
			oci.WithRootFSPath(rootfs(t)),
			oci.WithProcessArgs("/bin/busybox", "sh", "-c", script),
			oci.WithCgroup("/berth-test-"+filepath.Base(cfg.State)+id),
		))...)
	if err != nil {
		t.Fatal(err)
	}
	task, err := c.NewTask(ctx, cio.NullIO)
	if err != nil {
		t.Fatal(err)
	}
	return task
}

func withRuntime(cfg embed.Config, name string) containerd.NewContainerOpts {
	return containerd.WithRuntime(name, &options.Options{BinaryName: filepath.Join(cfg.Libexec, "runc")})
}

func remove(t *testing.T, ctx context.Context, s *embed.Server, id string) {
	t.Helper()
	c, err := s.Client().LoadContainer(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	task, err := c.Task(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := task.Delete(ctx, containerd.WithProcessKill); err != nil {
		t.Error(err)
	}
	if err := c.Delete(ctx); err != nil {
		t.Error(err)
	}
}

// rootfs makes a root file system with nothing but busybox in it.
func rootfs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"bin", "proc", "dev", "sys", "tmp"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatalf("find busybox: %v: run make setup", err)
	}
	data, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin", "busybox"), data, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sh", "sleep"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// containerd asks the snapshotter to commit within a transaction. A snapshotter of another program
// that hung there kept containers of all pods from being made and deleted. PROPERTIES 3.
func TestASnapshotterThatHangsHoldsUpNothingElse(t *testing.T) {
	lazy := embedtest.NewLazy(t)
	lazy.Serve(t)
	cfg := embedtest.Config(t)
	cfg.Proxies = map[string]embed.Proxy{"lazy": {Address: lazy.Address}}
	c := embedtest.Start(t, cfg).Client()
	sn := c.SnapshotService("lazy")
	if _, err := sn.Prepare(k8s(t), "writable", ""); err != nil {
		t.Fatal(err)
	}
	hangs, committed := lazy.Hang(), make(chan error, 1)
	go func() { committed <- sn.Commit(k8s(t), "layer", "writable") }()
	held := <-hangs
	defer close(held)
	_, err := c.ContainerService().Create(k8s(t), containers.Container{ID: "other", Runtime: containers.RuntimeInfo{Name: "x"}, Spec: &anypb.Any{}})
	if err != nil {
		t.Error(err)
	}
	if err := <-committed; !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), lazy.Address) {
		t.Error(err)
	}
}
