// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/base/connection"
	"berth/internal/base/retry"
	"berth/internal/engine/shims"
	"berth/internal/heart/pod"
	"berth/internal/host/pidfd"
	"berth/internal/host/pins"
)

// groupNode is an adapter on a containerd of its own, with a handler whose pods share shims.
type groupNode struct {
	*Containerd
	t       *testing.T
	handler pod.Handler
	dir     string // what is volatile of containerd's
}

func newGroupNode(t *testing.T, most int) groupNode {
	t.Helper()
	c, h, dir := onContainerd(t)
	h.ShimPods = most
	if group := c.JoinGroup(t.Context(), thisID, h); group != "" {
		t.Errorf("a pod joined %s before the shim was asked whether it can", group)
	}
	if ours, err := c.SandboxShim(t.Context(), h); err != nil || !ours {
		t.Fatalf("the shim can serve a pod without a process: %v, %v", ours, err)
	}
	return groupNode{c, t, h, dir}
}

// begin makes a pod, as pod does: its group first.
func (n groupNode) begin(id, netns string) (group string, err error) {
	group = n.JoinGroup(n.t.Context(), id, n.handler)
	return group, errors.Join(
		n.CreateSandbox(n.t.Context(), id, n.handler),
		n.StartShim(n.t.Context(), n.request(id, group, netns)),
	)
}

func (n groupNode) request(id, group, netns string) pod.SandboxRequest {
	return pod.SandboxRequest{
		ID:        id,
		Handler:   n.handler,
		CreatedAt: time.Now(),
		NetNS:     netns,
		Group:     group,
		Spec:      &specs.Spec{Version: specs.Version, Linux: &specs.Linux{}},
	}
}

func (n groupNode) end(id string) error {
	return errors.Join(n.EndShim(context.Background(), id), n.DeleteSandbox(context.Background(), id))
}

// Pods of a group have one shim, with a thread in the network of each, which ends with the pod. The
// working directory of the shim goes with its first pod, and its socket with its last.
func TestPodsOfAGroupHaveOneShim(t *testing.T) {
	n := newGroupNode(t, 2)
	nets, err := pins.NewNetworks(t.TempDir(), "test")
	try(t, err)
	threads := map[string]string{}
	for _, id := range []string{thisID, otherID} {
		netns := nets.PathFor(id)
		try(t, nets.Create(t.Context(), netns))
		t.Cleanup(func() { try(t, nets.Remove(context.Background(), netns)) })
		_, err := n.begin(id, netns)
		try(t, err)
		thread, err := n.NetworkThread(t.Context(), id)
		try(t, err)
		threads[id] = fmt.Sprintf("/proc/%d/task/%d/ns/net", shimOf(t, n.Containerd, id), thread)
		if !sameNamespace(t, netns, threads[id]) {
			t.Errorf("the thread of %s is in another network namespace", id)
		}
	}
	shim := shimOf(t, n.Containerd, thisID)
	if other := shimOf(t, n.Containerd, otherID); other != shim {
		t.Fatalf("the shims of a group are %d and %d", shim, other)
	}
	fd, err := pidfd.Open(shim)
	try(t, err)
	defer func() { _ = unix.Close(fd) }()
	try(t, n.end(thisID))
	if pidfd.Ask(fd) != pidfd.Alive || shimOf(t, n.Containerd, otherID) != shim {
		t.Error("the shim of a pod that stays has ended")
	}
	for deadline := time.Now().Add(time.Minute); ; {
		_, err := os.Stat(threads[thisID])
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a thread is left in the network of a pod that is gone: %v", err)
		}
		retry.Sleep(t.Context().Done(), forgetInterval)
	}
	try(t, n.end(otherID))
	if pidfd.WaitEnd(t.Context(), fd, time.Minute) != pidfd.Gone {
		t.Error("the shim stays without a pod")
	}
}

// Pods come and go at the same time, so that a pod comes to a shim that is about to end: each is
// made, and no shim is left.
func TestPodsOfGroupsComeAndGoAtOnce(t *testing.T) {
	n := newGroupNode(t, 3)
	var all sync.WaitGroup
	var mu sync.Mutex
	shims := map[int]bool{}
	for worker := range 4 {
		all.Go(func() {
			for round := range 6 {
				id := fmt.Sprintf("%032x%032x", worker+1, round+1)
				if _, err := n.begin(id, ""); err != nil {
					t.Errorf("pod %s: %v", id, err)
					return
				}
				mu.Lock()
				shims[shimOf(t, n.Containerd, id)] = true
				mu.Unlock()
				if err := n.end(id); err != nil {
					t.Errorf("pod %s: %v", id, err)
					return
				}
			}
		})
	}
	all.Wait()
	for pid := range shims {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if err == nil && len(b) > 0 {
			t.Errorf("shim %d is left: %q", pid, b)
		}
	}
	if n.shims.Grouped() {
		t.Error("groups are remembered")
	}
}

// A start of a shim that had died was cut off, and undone, and the next one succeeded. The pod
// counted as leaving all the same, and its shim was killed when its mate went.
func TestAShimThatWasStartedAgainOutlivesTheMatesOfItsPod(t *testing.T) {
	n := newGroupNode(t, 2)
	var requests []pod.SandboxRequest
	for _, id := range []string{thisID, otherID} {
		group, err := n.begin(id, "")
		try(t, err)
		requests = append(requests, n.request(id, group, ""))
	}
	fd, err := pidfd.Open(shimOf(t, n.Containerd, thisID))
	try(t, err)
	defer func() { _ = unix.Close(fd) }()
	try(t, pidfd.Send(fd, unix.SIGKILL))
	if pidfd.WaitEnd(t.Context(), fd, time.Minute) != pidfd.Gone {
		t.Fatal("the shim does not end")
	}
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.StartShim(cut, requests[0]); err == nil {
		t.Fatal("a start succeeded that was cut off")
	}
	if err := n.EndShim(t.Context(), thisID); err != nil && !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	try(t, n.StartShim(t.Context(), requests[0]))
	shim := shimOf(t, n.Containerd, thisID)
	if err := n.EndShim(t.Context(), otherID); err != nil && !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	try(t, n.DeleteSandbox(t.Context(), otherID))
	if n.shims.HasEnded(thisID) || !n.shims.Is(thisID, shim) {
		t.Error("the shim of a pod was killed when another pod went")
	}
	try(t, n.end(thisID))
}

// A shim that is known to hang, so that it is not even asked, was taken for one that answers, and
// the next pod joined it. The absence of containerd says nothing about a shim.
func TestAPodJoinsNoShimThatIsKnownToHang(t *testing.T) {
	n := newGroupNode(t, 3)
	first, err := n.begin(thisID, "")
	try(t, err)
	joins := func(what string) {
		t.Helper()
		if group := n.JoinGroup(t.Context(), otherID, n.handler); group == first {
			t.Errorf("%s: a pod joined its group", what)
		}
		n.LeaveGroup(otherID)
	}
	for range callsPerTask {
		n.asker.enter(thisID)
	}
	joins("a shim that has not answered earlier calls")
	for range callsPerTask {
		n.asker.leave(thisID)
	}
	try(t, n.end(thisID))
	first, err = n.begin(thisID, "")
	try(t, err)
	asked := n.asker.setAside
	n.asker.setAside = func(_ context.Context, id string) bool { return id == thisID }
	joins("a shim that has not answered since containerd started")
	n.asker.setAside = asked
	try(t, n.end(thisID))
	absent := New(connection.Absent(errors.New("it is starting")), Config{Owner: "owner", Shims: n.shims, Logger: n.log})
	if !absent.answers(t.Context(), thisID, groupTimeout) {
		t.Error("a group is closed since containerd is away")
	}
}

// Shims were shared wherever a directory for programs that clean up was configured, also where none
// can be run: the death of one shim ended the containers of all its pods.
func TestNoShimIsSharedWhereNothingSparesItsContainers(t *testing.T) {
	n := newGroupNode(t, 3)
	usable := n.cleanups
	blocked := filepath.Join(t.TempDir(), "file")
	try(t, os.WriteFile(blocked, nil, 0o600))
	n.cleanups = shims.NewCleanups(n.shims, filepath.Join(blocked, "cleanup"), n.log)
	if group := n.JoinGroup(t.Context(), thisID, n.handler); group != "" {
		t.Errorf("a pod joined %s", group)
	}
	n.cleanups = usable
	first := n.JoinGroup(t.Context(), thisID, n.handler)
	if first == "" {
		t.Fatal("a pod is not in a group")
	}
	// Nothing can be made there any more when the pod comes to its shim.
	dir := filepath.Join(n.dir, "cleanup")
	try(t, os.RemoveAll(dir))
	try(t, os.WriteFile(dir, nil, 0o600))
	try(t, n.CreateSandbox(t.Context(), thisID, n.handler))
	try(t, n.StartShim(t.Context(), n.request(thisID, first, "")))
	if second := n.JoinGroup(t.Context(), otherID, n.handler); second == first {
		t.Error("a pod joined a group whose containers nothing spares")
	}
	n.LeaveGroup(otherID)
	try(t, n.end(thisID))
}

// A container that was made after berth had started anew was ended with the shim that its pod
// shares: by its object containerd was to clean up with the shim's own program.
func TestWhatIsMadeAfterAStartOfBerthIsSpared(t *testing.T) {
	n := newGroupNode(t, 3)
	group, err := n.begin(thisID, "")
	try(t, err)
	dir := filepath.Join(n.dir, "cleanup")
	n.shims = shims.New(shims.Config{Logger: n.log})
	n.cleanups = shims.NewCleanups(n.shims, dir, n.log)
	n.RejoinGroup(thisID, group, n.handler, true)
	try(t, n.CreateContainer(t.Context(), pod.Object{ID: otherID, SandboxID: thisID, Handler: n.handler, Spec: &specs.Spec{}}))
	defer func() { try(t, n.DeleteContainer(context.Background(), otherID)) }()
	o, err := n.client.ContainerService().Get(connection.Namespaced(t.Context()), otherID)
	try(t, err)
	if filepath.Dir(o.Runtime.Name) != dir {
		t.Errorf("containerd is to clean up by %s", o.Runtime.Name)
	}
	// The shim dies, and with it what says where its program was.
	fd, err := pidfd.Open(shimOf(t, n.Containerd, thisID))
	try(t, err)
	defer func() { _ = unix.Close(fd) }()
	try(t, pidfd.Send(fd, unix.SIGKILL))
	if pidfd.WaitEnd(t.Context(), fd, time.Minute) != pidfd.Gone {
		t.Fatal("the shim does not end")
	}
	older := o
	older.ID, older.Runtime.Name = "older", n.handler.Type
	_, err = n.client.ContainerService().Create(connection.Namespaced(t.Context()), older)
	try(t, err)
	defer func() { try(t, n.DeleteContainer(context.Background(), older.ID)) }()
	if program := n.cleanupProgram(t.Context(), older.ID); program != o.Runtime.Name {
		t.Errorf("containerd is to clean up by %q once the shim has died", program)
	}
	if err := n.EndShim(t.Context(), thisID); err != nil && !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	try(t, n.DeleteSandbox(t.Context(), thisID))
}

// An exec in a container that had just ended and was released was refused for the death of a shim
// that served its other pods well.
func TestAnExecBlamesNoShimForTheEndOfItsContainer(t *testing.T) {
	f := &fake{}
	f.add("c1", "pod", false)
	c := f.adapter(t)
	defer c.stop()
	c.shims.Rejoin("pod", "group-1", "runc")
	missing := fmt.Errorf("create exec process: %w", errdefs.ErrNotFound)
	if err := c.withoutShim(t.Context(), "c1", missing); !errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
		t.Errorf("of a container that has ended: %v", err)
	}
	c.runs = func(id string) bool { return id == "c1" }
	if err := c.withoutShim(t.Context(), "c1", missing); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("of a container that runs without its shim: %v", err)
	}
}

// A pod waits for its turn no longer than its call lasts.
func TestAPodWhoseGroupIsBusyGivesUpWithItsCall(t *testing.T) {
	var s starts
	done, err := s.enter(t.Context(), "g")
	try(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.enter(ctx, "g"); !errors.Is(err, context.Canceled) {
		t.Errorf("it got its turn: %v", err)
	}
	other, err := s.enter(t.Context(), "h")
	try(t, err)
	other()
	done()
	done, err = s.enter(t.Context(), "g")
	try(t, err)
	done()
	if len(s.of) != 0 {
		t.Errorf("remembered: %v", s.of)
	}
}

// Of thirty pods that came at once the last ones were refused on a busy node, because the time that
// each has for the shim began before its turn. If the shim hangs, those who wait do not wait for it
// one after another.
func TestPodsThatWaitForTheirTurnAreRefusedOnlyIfTheShimHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s starts
		done, err := s.enter(t.Context(), "g")
		try(t, err)
		const pods = 3
		answers := make(chan error, pods)
		for range pods {
			go func() {
				done, err := s.enter(t.Context(), "g")
				answers <- err
				if err == nil {
					time.Sleep(groupJoinTimeout)
					s.late("g")
					done()
				}
			}()
		}
		time.Sleep(groupStartTimeout - time.Second)
		done()
		try(t, <-answers)
		began := time.Now()
		for range pods - 1 {
			if err := <-answers; !errdefs.IsUnavailable(err) || time.Since(began) > groupJoinTimeout {
				t.Errorf("the next pod, after %v: %v", time.Since(began), err)
			}
		}
		done, err = s.enter(t.Context(), "g")
		try(t, err)
		done()
	})
}
