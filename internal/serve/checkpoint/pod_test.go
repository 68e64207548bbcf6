// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/client"
)

func podNamed(name string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
}

func containerNamed(name string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata:   &runtimeapi.ContainerMetadata{Name: name},
		Image:      &runtimeapi.ImageSpec{Image: "img:1"},
		Command:    []string{"serve"},
		Args:       []string{"-v"},
		WorkingDir: "/work",
		Envs:       []*runtimeapi.KeyValue{{Key: "A", Value: []byte("1")}, {Key: "B", Value: []byte("2")}},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			RunAsUser:          &runtimeapi.Int64Value{Value: 7},
			SupplementalGroups: []int64{8},
		}},
	}
}

// both asks for a checkpoint of both containers of p1.
func both(dir string) *runtimeapi.CheckpointPodRequest {
	return &runtimeapi.CheckpointPodRequest{PodSandboxId: "p1", OutputPath: dir, ContainerIds: []string{"c1", "c2"}}
}

// soon is a context with a deadline, which calls about pods have.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range list {
		all = append(all, e.Name())
	}
	return all
}

// All containers are paused before the first one is read, and none goes on before the last one was.
func TestACheckpointOfAPod(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	if err := n.service.CheckpointPod(soon(t), both(dir)); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"spec", "spec c2", "pause", "pause c2", "checkpoint", "changes", "checkpoint c2", "changes c2",
		"resume", "resume c2",
	}
	if slices.Sort(n.did[min(8, len(n.did)):]); !slices.Equal(n.did, want) {
		t.Errorf("the steps were %q, want %q", n.did, want)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"c1.tar", "c2.tar", "pod.json"}) {
		t.Errorf("%q", got)
	}
	for _, id := range []string{"c1", "c2"} {
		if got := client.Archive(t, filepath.Join(dir, id+".tar")); got["rootfs-diff.tar"] != "changed" || got["checkpoint/pages-1.img"] != "memory" {
			t.Errorf("%s: %q", id, got)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "pod.json")); err != nil || st.Mode() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
	n.expectNothingLeft(t)
}

// PROPERTIES 28: whatever step fails, all containers go on, the directory is empty, and the error
// names the container.
func TestACheckpointOfAPodThatFailsLeavesNothing(t *testing.T) {
	for _, step := range []string{"spec c2", "pause", "pause c2", "checkpoint", "checkpoint c2", "changes c2"} {
		n := newNode(t)
		n.fail[step] = fmt.Errorf("step %s: %w", step, errdefs.ErrFailedPrecondition)
		dir := t.TempDir()
		err := n.service.CheckpointPod(soon(t), both(dir))
		if !errdefs.IsFailedPrecondition(err) || strings.HasSuffix(step, "c2") != strings.Contains(err.Error(), "container c2") {
			t.Errorf("%s: %v", step, err)
		}
		if left := names(t, dir); len(left) > 0 {
			t.Errorf("%s: left %q", step, left)
		}
		n.expectNothingLeft(t)
	}
}

// A file that somebody makes meanwhile is left alone, and berth's own are removed.
func TestACheckpointOfAPodReplacesNothing(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	open, err := openEmpty(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	path := filepath.Join(dir, "pod.json")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	from := t.TempDir()
	if err := publishPod(t.Context(), open, []dump{{target: n.target, dir: from}}, []byte("x")); !errdefs.IsAlreadyExists(err) {
		t.Error(err)
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" || len(names(t, dir)) != 1 {
		t.Errorf("%q, and %q", b, names(t, dir))
	}
}

// One of the containers is paused by somebody else: it stays paused, and the other one goes on.
func TestAContainerOfAPodThatIsPausedAlreadyStaysPaused(t *testing.T) {
	for theirs, ours := range map[string]string{"c1": "c2", "c2": "c1"} {
		n := newNode(t)
		n.paused[theirs] = true
		if err := n.service.CheckpointPod(soon(t), both(t.TempDir())); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v", theirs, err)
		}
		if !n.paused[theirs] || n.paused[ours] {
			t.Errorf("%s: paused: %v", theirs, n.paused)
		}
	}
}

// It ends with its deadline, and as soon as one of the containers ends.
func TestACheckpointOfAPodIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.hang["checkpoint c2"] = true
		dir := t.TempDir()
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		if err := n.service.CheckpointPod(ctx, both(dir)); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 7*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		n.expectNothingLeft(t)

		ended := make(chan error, 1)
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began = time.Now()
		go func() { ended <- n.service.CheckpointPod(ctx, both(dir)) }()
		synctest.Wait()
		close(n.ended)
		if err := <-ended; !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "container c1: it has ended") || time.Since(began) != 0 {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		n.expectNothingLeft(t)
		if left := names(t, dir); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
}

// PROPERTIES 1: one of the containers is to be stopped, and the shim of another one hangs. On
// cgroup v1 a process that is frozen does not end.
func TestAStopOfOneContainerEndsTheCheckpointOfItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.frozen["/cg/c2"] = true
		n.hang["checkpoint"], n.hang["resume"] = true, true
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		result := make(chan error, 1)
		go func() { result <- n.service.CheckpointPod(ctx, both(t.TempDir())) }()
		synctest.Wait()
		close(n.stopSide)
		synctest.Wait()
		if n.isFrozen("/cg/c2") {
			t.Error("it waits for the other one")
		}
		if err := <-result; !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "container c2: its stop") {
			t.Error(err)
		}
	})
}

func TestPodCheckpointsThatCannotBe(t *testing.T) {
	n := newNode(t)
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		edit func(*runtimeapi.CheckpointPodRequest)
		is   func(error) bool
		say  string
	}{
		{"no pod", func(r *runtimeapi.CheckpointPodRequest) { r.PodSandboxId = "p9" }, errdefs.IsNotFound, `checkpoint pod "p9"`},
		{"a container", func(r *runtimeapi.CheckpointPodRequest) { r.PodSandboxId = "c1" }, errdefs.IsNotFound, "c1"},
		{"options", func(r *runtimeapi.CheckpointPodRequest) { r.Options = map[string]string{"k": "v"} }, errdefs.IsInvalidArgument, "options"},
		{"relative", func(r *runtimeapi.CheckpointPodRequest) { r.OutputPath = "x" }, errdefs.IsInvalidArgument, "output_path"},
		{"absent", func(r *runtimeapi.CheckpointPodRequest) { r.OutputPath += "/x" }, errdefs.IsInvalidArgument, "no such file"},
		{"a file", func(r *runtimeapi.CheckpointPodRequest) { r.OutputPath = filepath.Join(full, "x") }, errdefs.IsInvalidArgument, "not a directory"},
		{"not empty", func(r *runtimeapi.CheckpointPodRequest) { r.OutputPath = full }, errdefs.IsFailedPrecondition, "not empty"},
		{"no container", func(r *runtimeapi.CheckpointPodRequest) { r.ContainerIds = nil }, errdefs.IsInvalidArgument, "container_ids"},
		{"twice", func(r *runtimeapi.CheckpointPodRequest) { r.ContainerIds = []string{"c1", "c1"} }, errdefs.IsInvalidArgument, "twice"},
		{"unknown", func(r *runtimeapi.CheckpointPodRequest) { r.ContainerIds = []string{"c1", "c9"} }, errdefs.IsNotFound, "c9"},
		{"a sandbox", func(r *runtimeapi.CheckpointPodRequest) { r.ContainerIds = []string{"p1"} }, errdefs.IsNotFound, "p1"},
		{"another pod's", func(r *runtimeapi.CheckpointPodRequest) { r.ContainerIds = []string{"c1", "c3"} }, errdefs.IsFailedPrecondition, "p2"},
	} {
		req := both(t.TempDir())
		tt.edit(req)
		if err := n.service.CheckpointPod(soon(t), req); !tt.is(err) || !strings.Contains(err.Error(), tt.say) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if err := n.service.CheckpointPod(t.Context(), both(t.TempDir())); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "deadline") {
		t.Errorf("no deadline: %v", err)
	}
	n.target.Running = false
	if err := n.service.CheckpointPod(soon(t), both(t.TempDir())); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("it does not run: %v", err)
	}
	if len(n.did) > 0 {
		t.Errorf("%q", n.did)
	}
}

// maker is a node that makes pods.
type maker struct {
	mu       sync.Mutex
	pods     map[string]*runtimeapi.PodSandbox
	made     []*runtimeapi.ContainerConfig
	fail     error         // of the second container
	removal  error         // of a pod
	run      func()        // is called before a pod is made
	hang     chan struct{} // keeps the second container from being made
	behind   time.Duration // by which the clock is set back before a pod is made
	restorer *Restorer
	dir      string
}

func newMaker(t *testing.T) *maker {
	m := &maker{pods: map[string]*runtimeapi.PodSandbox{}, dir: filepath.Join(t.TempDir(), "restored-pods")}
	m.start()
	return m
}

func (m *maker) start() {
	m.restorer = NewRestorer(RestorerConfig{
		Dir:  m.dir,
		Pods: m,
		ImageID: func(ref string) string {
			return map[string]string{"alias:1": "one", "img@sha256:1": "one", "img:2": "two"}[ref]
		},
		Logger: discard,
	})
}

func (m *maker) RunNotedPodSandbox(_ context.Context, config *runtimeapi.PodSandboxConfig, _ string, note func(string) error) (string, error) {
	if err := note("new"); err != nil {
		return "", err
	}
	if m.run != nil {
		m.run()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods["new"] = &runtimeapi.PodSandbox{Id: "new", Metadata: config.GetMetadata(), CreatedAt: time.Now().Add(-m.behind).UnixNano()}
	return "new", nil
}

func (m *maker) ListPodSandbox(*runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.pods))
}

func (m *maker) CreateContainer(ctx context.Context, pod string, config *runtimeapi.ContainerConfig) (string, error) {
	m.mu.Lock()
	m.made = append(m.made, config)
	second := len(m.made) == 2
	m.mu.Unlock()
	if second && m.hang != nil {
		select {
		case <-m.hang:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	if second && m.fail != nil {
		return "", m.fail
	}
	return pod + "-" + config.GetMetadata().GetName(), nil
}

func (m *maker) RemovePodSandbox(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.removal != nil {
		return m.removal
	}
	delete(m.pods, id)
	return nil
}

// restoring begins to restore a pod, and returns once that waits for something.
func (m *maker) restoring(ctx context.Context, dir string) <-chan error {
	result := make(chan error, 1)
	go func() {
		_, err := m.restorer.RestorePod(ctx, again(dir))
		result <- err
	}()
	synctest.Wait()
	return result
}

// expectNoPod fails if a pod is left, or the note of one.
func (m *maker) expectNoPod(t *testing.T) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	left, err := os.ReadDir(m.dir)
	if len(m.pods) > 0 || err == nil && len(left) > 0 {
		t.Errorf("left: %v, %v", m.pods, left)
	}
}

// checkpointed is a directory with the checkpoint of p1.
func checkpointed(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := newNode(t).service.CheckpointPod(soon(t), both(dir)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// again asks for the pod of a checkpoint.
func again(dir string) *runtimeapi.RestorePodRequest {
	return &runtimeapi.RestorePodRequest{
		CheckpointPath:   dir,
		Config:           podNamed("p"),
		ContainerConfigs: []*runtimeapi.ContainerConfig{containerNamed("side"), containerNamed("web")},
	}
}

// What belongs to the processes is as it was, or the request is refused before anything is made;
// everything else is as the request says.
func TestAPodIsRestoredAsItWas(t *testing.T) {
	dir := checkpointed(t)
	m := newMaker(t)
	req := again(dir)
	req.ContainerConfigs[0].Mounts = []*runtimeapi.Mount{{ContainerPath: "/new", HostPath: "/new"}}
	req.ContainerConfigs[1].Image.Image = "alias:1"
	slices.Reverse(req.ContainerConfigs[1].Envs)
	asked := proto.CloneOf(req)
	resp, err := m.restorer.RestorePod(soon(t), req)
	if err != nil {
		t.Fatal(err)
	}
	want := &runtimeapi.RestorePodResponse{PodSandboxId: "new", RestoredContainers: []*runtimeapi.RestoredContainer{
		{Name: "side", ContainerId: "new-side"},
		{Name: "web", ContainerId: "new-web"},
	}}
	if !proto.Equal(resp, want) {
		t.Errorf("%v", resp)
	}
	if !proto.Equal(req, asked) {
		t.Error("the request was changed")
	}
	for i, archive := range []string{"c2.tar", "c1.tar"} {
		if got := m.made[i].GetImage().GetImage(); got != filepath.Join(dir, archive) {
			t.Errorf("container %d is made from %s", i, got)
		}
	}
	if len(m.made[0].GetMounts()) != 1 || len(names(t, m.dir)) != 0 || len(m.pods) != 1 {
		t.Errorf("%v, notes %q, pods %v", m.made[0], names(t, m.dir), m.pods)
	}

	for _, tt := range []struct {
		say  string
		edit func(*runtimeapi.RestorePodRequest)
	}{
		{"options", func(r *runtimeapi.RestorePodRequest) { r.Options = map[string]string{"k": "v"} }},
		{"checkpoint_path", func(r *runtimeapi.RestorePodRequest) { r.CheckpointPath = "." }},
		{"network", func(r *runtimeapi.RestorePodRequest) {
			r.Config.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
		}},
		{`"web" is missing`, func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs = r.ContainerConfigs[:1] }},
		{`"side" is there twice`, func(r *runtimeapi.RestorePodRequest) {
			r.ContainerConfigs = append(r.ContainerConfigs, containerNamed("side"))
		}},
		{`no container "more"`, func(r *runtimeapi.RestorePodRequest) {
			r.ContainerConfigs = append(r.ContainerConfigs, containerNamed("more"))
		}},
		{"no metadata.name", func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1].Metadata = nil }},
		{"image", func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1].Image.Image = "img:2" }},
		{"image", func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1].Image = nil }},
		{"command", func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1].Command = nil }},
		{"args", func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1].Args = []string{"-q"} }},
		{"working_dir", func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1].WorkingDir = "" }},
		{"envs", func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1].Envs[0].Value = []byte("3") }},
		{"tty", func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1].Tty = true }},
		{"security_context", func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1].Linux.SecurityContext.RunAsUser.Value = 0 }},
		{"security_context", func(r *runtimeapi.RestorePodRequest) {
			r.ContainerConfigs[1].Linux.SecurityContext.RunAsGroup = &runtimeapi.Int64Value{}
		}},
		{"security_context", func(r *runtimeapi.RestorePodRequest) {
			r.ContainerConfigs[1].Linux.SecurityContext.SupplementalGroups = nil
		}},
		{"security_context", func(r *runtimeapi.RestorePodRequest) {
			r.ContainerConfigs[1].Linux.SecurityContext.Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}}
		}},
	} {
		m := newMaker(t)
		req := again(dir)
		tt.edit(req)
		if _, err := m.restorer.RestorePod(soon(t), req); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.say) {
			t.Errorf("%s: %v", tt.say, err)
		}
		m.expectNoPod(t)
	}
	if _, err := newMaker(t).restorer.RestorePod(t.Context(), again(dir)); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "deadline") {
		t.Errorf("no deadline: %v", err)
	}
}

// PROPERTIES 32: what is not a complete checkpoint of a pod, or may be somebody else's, makes none.
func TestADirectoryThatIsNotACheckpointIsRefused(t *testing.T) {
	write := func(name, content string) func(t *testing.T, dir string) error {
		return func(_ *testing.T, dir string) error {
			return os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600)
		}
	}
	replace := func(before, after string) func(t *testing.T, dir string) error {
		return func(t *testing.T, dir string) error {
			t.Helper()
			path := filepath.Join(dir, podFile)
			b, err := os.ReadFile(path)
			if err == nil && !strings.Contains(string(b), before) {
				t.Fatalf("%s has no %s", b, before)
			}
			return errors.Join(err, os.WriteFile(path, []byte(strings.Replace(string(b), before, after, 1)), 0o600))
		}
	}
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, dir string) error
		is     func(error) bool
	}{
		{"not completed", func(_ *testing.T, dir string) error { return os.Remove(filepath.Join(dir, podFile)) }, errdefs.IsInvalidArgument},
		{"an archive is missing", func(_ *testing.T, dir string) error { return os.Remove(filepath.Join(dir, "c1.tar")) }, errdefs.IsInvalidArgument},
		{"an archive is cut off", func(_ *testing.T, dir string) error { return os.Truncate(filepath.Join(dir, "c1.tar"), 4096) }, errdefs.IsInvalidArgument},
		{"garbage", write(podFile, "garbage"), errdefs.IsInvalidArgument},
		{"of a newer berth", replace(`"version":1`, `"version":2`), errdefs.IsInvalidArgument},
		{"an archive elsewhere", replace(`"c1.tar"`, `"../c1.tar"`), errdefs.IsInvalidArgument},
		{"one archive for two", replace(`"c1.tar"`, `"c2.tar"`), errdefs.IsInvalidArgument},
		{"no archive", replace(`"c1.tar"`, `""`), errdefs.IsInvalidArgument},
		{"no containers", replace(`"containers":`, `"other":`), errdefs.IsInvalidArgument},
		{"no configuration", replace(`"config":`, `"other":`), errdefs.IsInvalidArgument},
		{"a configuration is none", replace(`"config":{`, `"config":{"metadata":7,`), errdefs.IsInvalidArgument},
		{"somebody else may write it", func(_ *testing.T, dir string) error { return os.Chmod(filepath.Join(dir, podFile), 0o622) }, errdefs.IsFailedPrecondition},
		{"an archive that somebody else may write", func(_ *testing.T, dir string) error { return os.Chmod(filepath.Join(dir, "c2.tar"), 0o622) }, errdefs.IsFailedPrecondition},
	} {
		dir := checkpointed(t)
		if err := tt.change(t, dir); err != nil {
			t.Fatal(err)
		}
		m := newMaker(t)
		if _, err := m.restorer.RestorePod(soon(t), again(dir)); !tt.is(err) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if len(m.made) > 0 {
			t.Errorf("%s: a container was made", tt.name)
		}
		m.expectNoPod(t)
	}
}

// PROPERTIES 32: a pod that cannot be made as a whole is not there, whatever its restore was cut
// off by.
func TestAPodIsRestoredAsAWholeOrNotAtAll(t *testing.T) {
	dir := checkpointed(t)
	m := newMaker(t)
	m.fail = errdefs.ErrUnavailable
	if _, err := m.restorer.RestorePod(soon(t), again(dir)); !errdefs.IsUnavailable(err) {
		t.Error(err)
	}
	m.expectNoPod(t)

	m = newMaker(t)
	m.fail, m.behind = errdefs.ErrUnavailable, time.Hour
	if _, err := m.restorer.RestorePod(soon(t), again(dir)); !errdefs.IsUnavailable(err) {
		t.Error(err)
	}
	m.expectNoPod(t)

	synctest.Test(t, func(t *testing.T) {
		m := newMaker(t)
		m.hang = make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := m.restorer.RestorePod(ctx, again(dir)); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		m.expectNoPod(t)
	})

	synctest.Test(t, func(t *testing.T) { // the removal fails, too: berth goes on with it
		m := newMaker(t)
		m.fail, m.removal = errdefs.ErrUnavailable, errdefs.ErrInternal
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = m.restorer.Run(ctx) })
		if _, err := m.restorer.RestorePod(soon(t), again(dir)); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "tries again") {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if len(m.pods) != 1 {
			t.Error("the pod is gone")
		}
		m.mu.Lock()
		m.removal = nil
		m.mu.Unlock()
		time.Sleep(2 * time.Second)
		m.expectNoPod(t)
		cancel()
		wg.Wait()
	})

	synctest.Test(t, func(t *testing.T) { // berth is killed meanwhile
		m := newMaker(t)
		m.hang = make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		result := m.restoring(ctx, dir)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = m.restorer.Run(ctx) })
		synctest.Wait()
		if len(m.pods) != 1 {
			t.Error("a pod that is being made was removed")
		}
		m.start()
		wg.Go(func() { _ = m.restorer.Run(ctx) })
		synctest.Wait()
		m.expectNoPod(t)
		close(m.hang)
		<-result
		stop()
		wg.Wait()
	})
}

// PROPERTIES 32: berth is killed while it makes the sandbox. A pod of the same name that has
// another ID is somebody else's.
func TestAPodWhoseIDNobodyLearntIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := checkpointed(t)
		m := newMaker(t)
		killed := errors.New("killed")
		m.run = func() {
			m.pods["new"] = &runtimeapi.PodSandbox{Id: "new", Metadata: podNamed("p").GetMetadata(), CreatedAt: time.Now().UnixNano()}
			panic(killed)
		}
		func() {
			defer func() {
				if p := recover(); p != killed { //nolint:errorlint // it is the very same
					panic(p)
				}
			}()
			_, _ = m.restorer.RestorePod(soon(t), again(dir))
		}()
		m.pods["other"] = &runtimeapi.PodSandbox{Id: "other", Metadata: podNamed("other").GetMetadata()}
		m.start()
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = m.restorer.Run(ctx) })
		synctest.Wait()
		delete(m.pods, "other")
		m.expectNoPod(t)
		stop()
		wg.Wait()
	})

	dir := checkpointed(t)
	m := newMaker(t)
	m.pods["mine"] = &runtimeapi.PodSandbox{Id: "mine", Metadata: podNamed("p").GetMetadata(), CreatedAt: time.Now().UnixNano()}
	if _, err := m.restorer.RestorePod(soon(t), again(dir)); !errdefs.IsAlreadyExists(err) || len(m.pods) != 1 {
		t.Errorf("%v, %v", err, m.pods)
	}
	key := keyOf(podNamed("p").GetMetadata())
	if err := m.restorer.mark(key, "new"); err != nil {
		t.Fatal(err)
	}
	if err := m.restorer.remove(t.Context(), key); err != nil || len(m.pods) != 1 {
		t.Errorf("a pod of the same name with another ID: %v, %v", err, m.pods)
	}
}

// One call of a request at a time makes the pod.
func TestARestoreIsNotUndoneByAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := checkpointed(t)
		m := newMaker(t)
		m.hang = make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		result := m.restoring(ctx, dir)
		if _, err := m.restorer.RestorePod(ctx, again(dir)); !errdefs.IsFailedPrecondition(err) {
			t.Error(err)
		}
		close(m.hang)
		if err := <-result; err != nil || len(m.pods) != 1 {
			t.Errorf("%v, %v", err, m.pods)
		}
	})
}
