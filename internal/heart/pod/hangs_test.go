// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/base/ops"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/test/world"
)

// listing is a bubble whose calls are listed, as the server of CRI lists them.
type listing struct {
	*bubble
	list *ops.List
}

func inListing(t *testing.T, test func(l *listing), with ...func(p *pod.Ports)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &listing{list: &ops.List{}}
		l.bubble = start(t, world.Free(), state.Loaded{}, append(with, func(p *pod.Ports) { p.Ops = l.list })...)
		l.list.Connect(ops.Config{Steps: l.Steps, Names: func(id string) (n event.Names, ok bool) {
			of, err := l.Target(id)
			if err != nil {
				return n, false
			}
			n.Namespace, n.Pod = of.PodConfig.GetMetadata().GetNamespace(), of.PodConfig.GetMetadata().GetName()
			n.Container = of.Config.GetMetadata().GetName()
			return n, true
		}})
		test(l)
	})
}

// call begins a call of the kubelet.
func (l *listing) call(w ops.Work, call func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.t.Context()), 2*time.Minute)
	ctx, op := l.list.Begin(event.WithClient(ctx, event.Client{Pid: 812, Name: "kubelet"}), w)
	go func() {
		defer cancel()
		defer op.End()
		_ = call(ctx)
	}()
}

// says fails unless the sentences about what is under way two seconds later have all of want.
func (l *listing) says(want ...string) {
	l.t.Helper()
	time.Sleep(2 * time.Second)
	synctest.Wait()
	list, _ := l.list.Snapshot()
	said := strings.Join(ops.Sentences(list, ops.Object{}, time.Now()), "\n")
	for _, w := range want {
		if !strings.Contains(said, w) {
			l.t.Errorf("said is\n%s\nwhich lacks\n%s", said, w)
		}
	}
}

// hang is one case of [TestWhatHangsIsNamed]: a call that is made while a part of the world is
// held.
type hang struct {
	holds string
	runs  bool // the container runs before
	call  func(l *listing, pod, ct string) (ops.Work, func(ctx context.Context) error)
	want  []string
}

func objectOf(pod, container string) ops.Object {
	return ops.Object{Names: event.Names{Namespace: "ns", Pod: pod, Container: container}}
}

func runPod(l *listing, _, _ string) (ops.Work, func(ctx context.Context) error) {
	return ops.Work{Kind: ops.Run, Of: objectOf("new", "")}, func(ctx context.Context) error {
		_, err := l.RunPodSandbox(ctx, config("new"), "")
		return err
	}
}

func createContainer(l *listing, pod, _ string) (ops.Work, func(ctx context.Context) error) {
	return ops.Work{Kind: ops.Create, Of: objectOf("web", "new")}, func(ctx context.Context) error {
		cfg := ctr("new")
		cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/mnt", HostPath: "/mnt"}}
		_, err := l.CreateContainer(ctx, pod, cfg)
		return err
	}
}

func startContainer(l *listing, _, ct string) (ops.Work, func(ctx context.Context) error) {
	return ops.Work{Kind: ops.Start, Of: ops.Object{ID: ct}}, func(ctx context.Context) error { return l.StartContainer(ctx, ct) }
}

func stopPod(l *listing, pod, _ string) (ops.Work, func(ctx context.Context) error) {
	return ops.Work{Kind: ops.Stop, Of: ops.Object{ID: pod}}, func(ctx context.Context) error { return l.StopPodSandbox(ctx, pod) }
}

func stopContainer(l *listing, _, ct string) (ops.Work, func(ctx context.Context) error) {
	return ops.Work{Kind: ops.Stop, Of: ops.Object{ID: ct}}, func(ctx context.Context) error { return l.StopContainer(ctx, ct, 15*time.Second) }
}

func removeContainer(l *listing, _, ct string) (ops.Work, func(ctx context.Context) error) {
	return ops.Work{Kind: ops.Remove, Of: ops.Object{ID: ct}}, func(ctx context.Context) error { return l.RemoveContainer(ctx, ct) }
}

func updateContainer(l *listing, _, ct string) (ops.Work, func(ctx context.Context) error) {
	return ops.Work{Kind: ops.Update, Of: ops.Object{ID: ct}}, func(ctx context.Context) error {
		return l.UpdateContainerResources(ctx, ct, &runtimeapi.LinuxContainerResources{CpuShares: 512})
	}
}

// PROPERTIES 65: each thing outside that hangs is named two seconds later, with the object, for
// whom, and until when; and nothing is under way once it has answered.
func TestWhatHangsIsNamed(t *testing.T) {
	for _, tc := range []hang{
		{"cni-add", false, runPod, []string{"ns/new is being made: it waits for the network (CNI ADD), for 2 s, asked for by kubelet[812]; what was made is undone in 3 min 58 s."}},
		{"netns", false, runPod, []string{"ns/new is being made: it waits for its network namespace, for 2 s, asked for by kubelet[812]"}},
		{"create-sandbox", false, runPod, []string{"ns/new is being made: containerd (CreateSandbox) has not answered for 2 s"}},
		{"host-path", false, createContainer, []string{"ns/web/new is being created: the file system of the host_path /mnt has not answered for 2 s, asked for by kubelet[812]"}},
		{"create-container", false, createContainer, []string{"ns/web/new is being created: containerd (CreateContainer) has not answered for 2 s"}},
		{"create-task", false, startContainer, []string{"ns/web/app is being started: the shim (Create) has not answered for 2 s, asked for by kubelet[812]; the start is given up in 3 min 58 s."}},
		{"start-task", false, startContainer, []string{"ns/web/app is being started: the shim (Start) has not answered for 2 s"}},
		{"update-task", true, updateContainer, []string{"the shim (Update) has not answered for 2 s"}},
		{"delete-task", true, removeContainer, []string{
			"ns/web/app is being removed: it waits for the release of what was made for it, for 2 s",
			"goes through the step release: the shim (Delete) has not answered for 2 s",
		}},
		{"cni-del", true, stopPod, []string{
			"ns/web is being stopped: it waits for the release of its network, for 2 s, asked for by kubelet[812]; it goes on without the call in 3 s.",
			"it waits for the network (CNI DEL), for 2 s",
		}},
		{"commit", true, stopPod, []string{"waits for the disk of the records, for 2 s"}},
	} {
		t.Run(tc.holds, func(t *testing.T) {
			inListing(t, func(l *listing) {
				p := l.pod("web", "")
				ct := l.create(p, ctr("app"))
				if tc.runs {
					if err := l.StartContainer(l.t.Context(), ct); err != nil {
						l.t.Fatal(err)
					}
				}
				release := l.Hold(tc.holds, "")
				l.call(tc.call(l, p, ct))
				l.says(tc.want...)
				release()
				time.Sleep(time.Minute)
				synctest.Wait()
				if list, _ := l.list.Snapshot(); len(list) > 0 {
					l.t.Errorf("after the answer there is still under way: %q", ops.Sentences(list, ops.Object{}, time.Now()))
				}
			})
		})
	}
}

// PROPERTIES 65: a stop says which signal was sent when, and when the next one comes; first of the grace period,
// then of a process that SIGKILL does not end.
func TestAStopSaysItsGracePeriod(t *testing.T) {
	inListing(t, func(l *listing) {
		p := l.pod("web", "")
		ct := l.run(p, "app")
		l.call(stopContainer(l, p, ct))
		l.says("ns/web/app is being stopped: SIGTERM 2 s ago, asked for by kubelet[812]; SIGKILL in 13 s.")
		l.call(stopContainer(l, p, ct))
		l.says("SIGTERM 2 s ago", "SIGTERM 4 s ago")
		l.HoldEnd(ct, -1)
		time.Sleep(11 * time.Second)
		l.says("ns/web/app is being stopped: SIGKILL 2 s ago")
		l.HoldEnd(ct, 0)
		l.exit(ct, 137)
		synctest.Wait()
	})
}

// PROPERTIES 65: extensions that hang are named at each place where they take part.
func TestHooksThatHangAreNamed(t *testing.T) {
	hooks := &stuck{}
	inListing(t, func(l *listing) {
		p := l.pod("web", "")
		ct := l.create(p, ctr("app"))
		for _, c := range []struct {
			call func(l *listing, pod, ct string) (ops.Work, func(ctx context.Context) error)
			want string
		}{
			{runPod, "ns/new is being made: it waits for the NRI plug-ins (RunPodSandbox), for 2 s, asked for by kubelet[812]"},
			{createContainer, "ns/web/new is being created: it waits for the NRI plug-ins (CreateContainer), for 2 s"},
			{startContainer, "ns/web/app is being started: it waits for the NRI plug-ins (StartContainer), for 2 s"},
		} {
			hooks.held = make(chan struct{})
			l.call(c.call(l, p, ct))
			l.says(c.want)
			close(hooks.held)
			synctest.Wait()
			hooks.held = nil
		}
	}, withHooks(hooks))
}

// stuck are hooks that wait while held is there.
type stuck struct{ held chan struct{} }

func (s *stuck) wait(ctx context.Context) error {
	if s.held == nil {
		return nil
	}
	select {
	case <-s.held:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *stuck) AdjustSpec(ctx context.Context, _ pod.Target, _ *runtimeapi.ContainerConfig, _ *specs.Spec) error {
	return s.wait(ctx)
}
func (s *stuck) SandboxRun(ctx context.Context, _ pod.Target) error         { return s.wait(ctx) }
func (s *stuck) Starting(ctx context.Context, _ pod.Target) error           { return s.wait(ctx) }
func (s *stuck) Ended(ctx context.Context, _ pod.Target, _ exit.Fact) error { return s.wait(ctx) }
func (*stuck) Created(context.Context, pod.Target)                          {}
func (*stuck) Started(context.Context, pod.Target)                          {}

// PROPERTIES 65: of 500 starts at once each is listed with what it waits for, and a second call for one
// of them with the first one.
func TestManyStartsSayWhatTheyWaitFor(t *testing.T) {
	inListing(t, func(l *listing) {
		p := l.pod("web", "")
		var all []string
		for i := range 500 {
			all = append(all, l.create(p, ctr(fmt.Sprintf("c%d", i))))
		}
		release := l.Hold("start-task", "")
		for _, ct := range all {
			l.call(startContainer(l, p, ct))
		}
		synctest.Wait()
		l.call(startContainer(l, p, all[0]))
		l.says(
			"ns/web/c0 is being started: the shim (Start) has not answered for 2 s",
			"ns/web/c499 is being started: the shim (Start) has not answered for 2 s",
			"ns/web/c0 is being started: it waits for an operation on it that began before, for 2 s, asked for by kubelet[812]",
		)
		list, left := l.list.Snapshot()
		if said := ops.Sentences(list, ops.Object{}, time.Now()); len(said) != 501 || left != 0 {
			t.Errorf("%d operations are said, and %d left out", len(said), left)
		}
		release()
		synctest.Wait()
	})
}

// A creation that is refused before it has a record is an event with its names.
func TestARefusedCreationIsAnEvent(t *testing.T) {
	notes := &noted{}
	inListing(t, func(l *listing) {
		sb := config("web")
		sb.LogDirectory = "/var/log/pods"
		p, err := l.RunPodSandbox(l.t.Context(), sb, "")
		if err != nil {
			l.t.Fatal(err)
		}
		gone := ctr("gone")
		gone.Image.Image = world.Absent
		if _, err := l.CreateContainer(l.t.Context(), p, gone); err == nil {
			l.t.Error("a container of an image that is not here was made")
		}
		cfg := ctr("app")
		cfg.Image.RuntimeHandler = "gone"
		if _, err := l.CreateContainer(l.t.Context(), p, cfg); err == nil {
			l.t.Error("a container of an image for another handler was made")
		}
		bad := ctr("bad")
		bad.LogPath = "../../etc/passwd"
		if _, err := l.CreateContainer(l.t.Context(), p, bad); err == nil {
			l.t.Error("a container whose log leaves its directory was made")
		}
		if _, err := l.RunPodSandbox(l.t.Context(), config("web-2"), "unknown"); err == nil {
			l.t.Error("a pod of an unknown handler was made")
		}
	}, func(p *pod.Ports) { p.Observer = notes })
	for _, want := range []string{"web/gone not found", "web/app gone", "web/bad leaves", "web-2 runtime handler"} {
		if !notes.has(want) {
			t.Errorf("no event has %s: %q", want, notes.lines)
		}
	}
}

// noted has the events about what was not made.
type noted struct {
	mu    sync.Mutex
	lines []string
}

func (n *noted) Note(_ string, e event.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch e := e.(type) {
	case event.ContainerNotMade:
		n.lines = append(n.lines, e.Name()+" "+e.Err)
	case event.SandboxNotMade:
		n.lines = append(n.lines, e.Name()+" "+e.Err)
	}
}

// has reports whether an event has all words.
func (n *noted) has(words string) bool {
	return slices.ContainsFunc(n.lines, func(line string) bool {
		for _, w := range strings.Fields(words) {
			if !strings.Contains(line, w) {
				return false
			}
		}
		return true
	})
}
