// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"strings"
	"testing"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"

	"berth/internal/base/exit"
	"berth/internal/heart/pod"
)

// A start that kill -9 cut off was carried out by the shim all the same. The start that was asked
// for again failed, since the task existed, or took the end of the first task for its own.
func TestATaskThatACutOffCallMadeIsTakenBack(t *testing.T) {
	f := &fake{}
	f.add("pod", "", false)
	f.add("c1", "pod", false)
	f.tasks["c1"].Status, f.tasks["c1"].Pid, f.pid = task.Status_CREATED, 7, 7
	a := f.adapter(t)
	defer a.stop()
	request := pod.TaskRequest{ID: "c1", Snapshotter: "fake", SnapshotKey: "c1"}
	pid, err := a.CreateTask(t.Context(), request)
	if err != nil || pid != 8 {
		t.Fatalf("process %d, %v", pid, err)
	}
	if got := dispatched(t, a, 7, 8); len(got) != 1 || got[0].Code != 8 {
		t.Errorf("reported: %v", got)
	}
	f.tasks["c1"].Status = task.Status_RUNNING
	if _, err := a.CreateTask(t.Context(), request); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a task that runs: %v", err)
	}
}

// dispatched returns what is reported of the ends of processes of c1, which end with their PIDs as
// codes.
func dispatched(t *testing.T, a *Containerd, pids ...uint32) (got []exit.Fact) {
	t.Helper()
	for _, pid := range pids {
		event, err := typeurl.MarshalAny(&eventtypes.TaskExit{ContainerID: "c1", ID: "c1", Pid: pid, ExitStatus: pid})
		try(t, err)
		e := &events.Envelope{Topic: "/tasks/exit", Timestamp: time.Now(), Event: event}
		a.dispatch(e, Listener{Exited: func(f exit.Fact) { got = append(got, f) }})
	}
	return got
}

// The event of a task's end can arrive when the task was deleted already and another one made in
// its place, which would be taken for the one that ended.
func TestTheEndOfADeletedTaskIsNotThatOfTheNext(t *testing.T) {
	f := &fake{}
	f.add("pod", "", false)
	f.add("c1", "pod", false)
	f.tasks["c1"].Status, f.tasks["c1"].Pid, f.pid = task.Status_STOPPED, 7, 7
	a := f.adapter(t)
	defer a.stop()
	if err := a.DeleteTask(t.Context(), "c1"); err != nil && !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	if pid, err := a.CreateTask(t.Context(), pod.TaskRequest{ID: "c1", Snapshotter: "fake", SnapshotKey: "c1"}); err != nil || pid != 8 {
		t.Fatalf("process %d, %v", pid, err)
	}
	if got := dispatched(t, a, 7, 0, 8); len(got) != 1 || got[0].Code != 8 {
		t.Errorf("reported: %v", got)
	}
}

// What panics in a call about a task, in a goroutine of its own, ends that call alone, and the call
// does not count any more.
func TestAPanicInACallAboutATaskIsItsError(t *testing.T) {
	c := (&fake{}).adapter(t)
	defer c.stop()
	for range callsPerTask + 1 {
		_, err := askShim(t.Context(), c.asker, "c1", func(context.Context) (int, error) { panic("nil map") })
		if !errdefs.IsInternal(err) || !strings.Contains(err.Error(), "nil map") {
			t.Fatal(err)
		}
	}
}
