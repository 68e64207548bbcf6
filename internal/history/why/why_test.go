// SPDX-License-Identifier: Apache-2.0

package why

import (
	"strings"
	"testing"
	"time"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/base/ops"
	"berth/internal/history/recorder"
)

var noon = clock.Stamped(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))

var (
	sandbox = event.Names{Namespace: "default", Pod: "web", UID: "uid"}
	app     = event.Names{Namespace: "default", Pod: "web", UID: "uid", Sandbox: "s1", Container: "app"}
	again1  = event.Names{Namespace: "default", Pod: "web", UID: "uid", Sandbox: "s1", Container: "app", Attempt: 1}
	kubelet = event.Client{Pid: 812, Name: "kubelet"}
	crictl  = event.Client{Pid: 4711, Name: "crictl"}
)

// told is the history of a pod while it is told, a second for each entry.
type told struct {
	recorder.Answer
	ended map[string]event.Exit
	list  []ops.Operation
	now   clock.Instant
}

// under tells of what is under way of an object: an operation that began seconds before the end of
// the tale, which the kubelet has asked for, and its part.
func (h *told) under(of event.Names, kind ops.Kind, seconds int, part ops.Work) *told {
	root := ops.Operation{Number: 1, Work: ops.Work{Kind: kind, Of: ops.Object{Names: of}}, By: kubelet, Since: h.now.Stamp()}
	if kind == ops.Pull {
		root.Of.Image = "app:v2"
	}
	h.list = []ops.Operation{root}
	if part.Kind != "" {
		part.Of = root.Of
		part.Until = h.now.Stamp().Add(time.Duration(seconds) * time.Second)
		h.list = append(h.list, ops.Operation{Number: 2, PartOf: 1, Work: part, By: kubelet, Since: h.now.Stamp()})
	}
	return h
}

func history() *told {
	return &told{now: noon, Answer: recorder.Answer{
		ID:    "s1",
		Names: sandbox,
		Name:  "default/web",
		Of:    map[string]event.Names{"s1": sandbox, "c1": app, "c2": again1},
	}}
}

// knows has the service know an end that is not on record.
func (h *told) knows(id string, f exit.Fact) *told {
	f.At = h.now
	h.ended = map[string]event.Exit{id: event.ExitOf(f)}
	return h
}

func (h *told) add(id string, events ...event.Event) *told {
	for _, e := range events {
		h.now = h.now.Add(time.Second)
		h.Entries = append(h.Entries, recorder.Entry{At: h.now, ID: id, Event: e})
	}
	return h
}

// runs tells of a container that was made and started.
func (h *told) runs(id string) *told {
	return h.add(id, event.ContainerCreated{Names: h.Of[id]}, event.ContainerRunning{Pid: 7})
}

// ends tells of its end.
func (h *told) ends(id string, f exit.Fact) *told {
	f.At = h.now.Add(time.Second)
	return h.add(id, event.ExitSettled{Exit: event.ExitOf(f)})
}

// crashes tells of its end and of the series of its crashes.
func (h *told) crashes(id string, f exit.Fact, count int) *told {
	h.ends(id, f)
	e := h.Entries[len(h.Entries)-1].Event.(event.ExitSettled).Exit
	first := e
	first.Ended = noon.Add(-time.Hour)
	if count == 1 {
		first = e
	}
	return h.add(id, event.ContainerCrashed{
		Names: h.Of[id],
		Count: count,
		First: event.Crash{Exit: first},
		Last:  event.Crash{Exit: e, Log: []string{"one", "two"}, Memory: 64 << 20},
	})
}

// beside says what a container beside the last one that crashed has used.
func (h *told) beside(name string, memory uint64) *told {
	last := &h.Entries[len(h.Entries)-1]
	e := last.Event.(event.ContainerCrashed)
	e.Last.Beside = event.Use{Container: name, Memory: memory}
	last.Event = e
	return h
}

func code(n uint32) exit.Fact { return exit.Fact{Code: n, Measured: true, Origin: exit.Kernel} }

func oom(l exit.Limit) exit.Fact {
	return exit.Fact{Code: 137, Measured: true, Origin: exit.Kernel, OOM: true, Limit: l}
}

// The words of each cause.
func TestTheWordsOfEachCause(t *testing.T) {
	for _, tc := range []struct {
		name  string
		of    *told
		cause Cause
		want  string
	}{
		{"it ran to its end", history().runs("c1").ends("c1", code(0)), Completed, `
			default/web/app (attempt 0) ended 10s ago with code 0, Completed.
			It ended by itself, and nobody had asked it to.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"it failed for the first time", history().runs("c1").crashes("c1", code(42), 1), Failed, `
			default/web/app (attempt 0) ended 11s ago with code 42, Error.
			It ended by itself, and nobody had asked it to.
			> one
			> two
			It is its first crash since it last ended well, as far as the history goes back.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"it crashes again and again, and was started again",
			history().runs("c1").crashes("c1", code(42), 3).runs("c2"), Failed, `
			default/web/app (attempt 0) ended 13s ago with code 42, Error.
			It ended by itself, and nobody had asked it to.
			> one
			> two
			It is its 3rd crash in a row. The first was 60m ago, with code 42, Error.
			Now: attempt 1 has run for 10s`},
		{"it reached its memory limit", history().runs("c1").crashes("c1", oom(exit.LimitContainer), 1), OOMOfContainer, `
			default/web/app (attempt 0) ended 11s ago with code 137, OOMKilled.
			The kernel's OOM killer ended it: the container reached its memory limit. It used 64.0 MiB at most.
			> one
			> two
			It is its first crash since it last ended well, as far as the history goes back.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"its pod reached its memory limit", history().runs("c1").ends("c1", oom(exit.LimitPod)), OOMOfPod, `
			default/web/app (attempt 0) ended 10s ago with code 137, OOMKilled.
			The kernel's OOM killer ended it: the pod reached its memory limit.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"a container beside it used what the pod may have",
			history().runs("c1").crashes("c1", oom(exit.LimitPod), 1).beside("importer", 80<<20), OOMOfPod, `
			default/web/app (attempt 0) ended 11s ago with code 137, OOMKilled.
			The kernel's OOM killer ended it: the pod reached its memory limit. It used 64.0 MiB at most. Most of it was used by importer beside it, 80.0 MiB at most.
			> one
			> two
			It is its first crash since it last ended well, as far as the history goes back.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"a group of pods reached its memory limit", history().runs("c1").ends("c1", oom(exit.LimitAbove)), OOMAbove, `
			default/web/app (attempt 0) ended 10s ago with code 137, OOMKilled.
			The kernel's OOM killer ended it: a cgroup above the pod reached its memory limit.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"the node ran out of memory", history().runs("c1").ends("c1", oom(exit.LimitNode)), OOMOfNode, `
			default/web/app (attempt 0) ended 10s ago with code 137, OOMKilled.
			The kernel's OOM killer ended it: no memory limit of the container or the pod was reached: the node ran out of memory.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"an OOM kill without a limit", history().runs("c1").ends("c1", oom(exit.LimitUnknown)), OOM, `
			default/web/app (attempt 0) ended 10s ago with code 137, OOMKilled.
			The kernel's OOM killer ended it. Which limit was reached is not known.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"a probe has failed: the kubelet stops the container alone",
			history().runs("c1").add("c1", event.StopRequested{By: kubelet, Timeout: time.Second}).ends("c1", code(137)), Stopped, `
			default/web/app (attempt 0) ended 10s ago with code 137, Error.
			The kubelet stopped this container and kept its pod 11s ago. A liveness or startup probe has failed, or the container is to be another one; CRI does not say which, the events of the pod do. It did not end within its 1s, and was killed.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"an eviction, or a deletion: the kubelet stops the pod",
			history().runs("c1").add("c1", event.StopRequested{By: kubelet, Timeout: time.Minute}).ends("c1", code(143)).
				add("s1", event.StopRequested{By: kubelet, Pod: true}).add("c1", event.Removed{}), PodStopped, `
			default/web/app (attempt 0) ended 12s ago with code 143, Error.
			The kubelet stopped the whole pod 13s ago. It was deleted, replaced or evicted; CRI does not say which, the events of the cluster do.
			Now: nothing, it was removed 10s ago`},
		{"a person stops it", history().runs("c1").add("c1", event.StopRequested{By: crictl, Timeout: time.Minute}).ends("c1", code(143)), StoppedByClient, `
			default/web/app (attempt 0) ended 10s ago with code 143, Error.
			Somebody, with crictl[4711], stopped this container 11s ago.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"a client that the kernel could not name", history().runs("c1").add("c1", event.StopRequested{Pod: true}).ends("c1", code(137)), PodStopped, `
			default/web/app (attempt 0) ended 10s ago with code 137, Error.
			A client of CRI stopped the whole pod 11s ago.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		// PROPERTIES 68
		{"the machine is shut down", history().runs("c1").add("", event.MachineShutDown{Running: 1}).
			add("c1", event.StopRequested{Shutdown: true, Timeout: time.Minute}).ends("c1", code(7)), ShutDown, `
			default/web/app (attempt 0) ended 10s ago with code 7, Error.
			The machine was shut down 11s ago, and this container was stopped before.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"systemd ends it before berth is told of the shutdown", history().runs("c1").ends("c1", code(143)).
			add("", event.MachineShutDown{}), Signalled, `
			default/web/app (attempt 0) ended 11s ago with code 143, Error.
			SIGTERM ended it. berth did not send it and nobody asked for a stop: it came from within the pod, or from a process of the node. The machine was being shut down at that time, for which systemd ends processes.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"the node was rebooted", history().runs("c1").add("", event.BerthStarted{After: event.AfterReboot}).
			ends("c1", exit.Fact{Origin: exit.Audit}), Rebooted, `
			default/web/app (attempt 0) ended 10s ago with a code that nobody knows.
			The node was rebooted, or lost its power, while it ran. No exit code exists.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"nobody knows", history().runs("c1").ends("c1", exit.Fact{Origin: exit.Audit}), Unmeasured, `
			default/web/app (attempt 0) ended 10s ago with a code that nobody knows.
			The process ended, but neither the kernel nor the shim could report its exit code (witness: audit).
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"its shim was killed", history().runs("c1").ends("c1", code(137)).add("c1", event.ShimDied{}), ShimKilled, `
			default/web/app (attempt 0) ended 11s ago with code 137, Error.
			The shim of its pod had died, and what was left of the pod was killed. Somebody killed the shim, or it crashed; the kernel's log may say so.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"a signal", history().runs("c1").ends("c1", code(139)), Signalled, `
			default/web/app (attempt 0) ended 10s ago with code 139, Error.
			SIGSEGV ended it. berth did not send it and nobody asked for a stop: it came from within the pod, or from a process of the node.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"its seccomp profile", history().add("c1", event.ContainerCreated{Names: app, Profile: "registry.example/p@sha256:1"}, event.ContainerRunning{Pid: 7}).ends("c1", code(159)), Signalled, `
			default/web/app (attempt 0) ended 10s ago with code 159, Error.
			SIGSYS ended it: it made a system call for which its seccomp profile, or the base of that, ends a program. The profile is registry.example/p@sha256:1.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"a command that is not there", history().add("c1", event.ContainerCreated{Names: app}, event.StartFailed{Err: `exec: "nope": not found`}).
			ends("c1", exit.NotStarted("c1", noon, `exec: "nope": not found`)), NotStarted, `
			default/web/app (attempt 0) ended 10s ago with code 128, StartError.
			Its program was not started. The error is: exec: "nope": not found.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"an image that cannot be pulled", history().add("s1", event.SandboxReady{}, event.PullBegan{Image: "a:1"},
			event.ImageNotPulled{Image: "a:1", Err: "no such host"}, event.ImageNotPulled{Image: "a:1", Err: "no such host"}), ImageNotPulled, `
			default/web waits for the image a:1, which could not be pulled, 10s ago.
			The error is: no such host.
			That has happened 2 times.
			Now: the kubelet tries again, with longer and longer waits`},
		{"a profile that cannot be pulled", history().add("s1", event.SandboxReady{}, event.ProfileNotPulled{Profile: "p@sha256:1", Err: "no such host"}), ImageNotPulled, `
			default/web waits for the seccomp profile p@sha256:1, which could not be pulled, 10s ago.
			The error is: no such host.
			Now: the kubelet tries again, with longer and longer waits`},
		{"somebody pulls an image for no pod", history().add("", event.ImageNotPulled{Image: "a:1", Err: "no such host"}).runs("c1"), Runs, `
			default/web/app (attempt 0) has run for 10s, and no end of one before it is in the history.`},
		{"an image that could be pulled in the end", history().add("s1", event.ImageNotPulled{Image: "a:1", Err: "no such host"},
			event.ImagePulled{Image: "a:1"}).runs("c1"), Runs, `
			default/web/app (attempt 0) has run for 10s, and no end of one before it is in the history.`},
		{"a policy refuses its image", history().add("s1", event.ImageRefused{Container: "app", Err: "rule 2 does not allow it"}), ImageRefused, `
			default/web/app was not created, 10s ago: the policy of the node does not let its image run.
			The error is: rule 2 does not allow it.
			Now: the kubelet tries again, with the same result until the image or the policy is another one`},
		{"a volume that hangs", history().add("c1", event.HostPathSilent{Path: "/mnt/nfs"}), VolumeSilent, `
			default/web/app is not created: its volume does not answer.
			The file system below /mnt/nfs has not answered for 10s; a server that it needs may be away.
			Now: its creation waits for that file system`},
		{"an end that cannot be recorded", history().runs("c1").add("c1", event.ExitReported{Exit: event.ExitOf(code(42))},
			event.AttemptFailed{Step: "settle", Err: "commit state: read-only file system"}), NotOnRecord, `
			default/web/app (attempt 0) ended 10s ago with code 42, which is not on record yet.
			The error is: commit state: read-only file system.
			Now: for CRI it is RUNNING until its end is on the disk, which berth tries every second`},
		{"an end on a disk that does not answer", history().runs("c1").knows("c1", code(42)), NotOnRecord, `
			default/web/app (attempt 0) ended 10s ago with code 42, which is not on record yet.
			Its record is being written.
			Now: for CRI it is RUNNING until its end is on the disk, which berth tries every second`},
		{"an end that could be recorded at last", history().runs("c1").add("c1", event.ExitReported{Exit: event.ExitOf(code(0))},
			event.AttemptFailed{Step: "settle", Err: "commit state: read-only file system"}).ends("c1", code(0)), Completed, `
			default/web/app (attempt 0) ended 10s ago with code 0, Completed.
			It ended by itself, and nobody had asked it to.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"a container that cannot be created", history().add("c1", event.ContainerNotMade{Names: app, Err: "no such device"}), NotCreated, `
			default/web/app (attempt 0) could not be created, 10s ago.
			The error is: no such device.
			Now: its creation failed; the kubelet tries again if the pod is to go on`},
		{"a plug-in of CNI fails", history().add("s1", event.SandboxNotMade{Names: sandbox, Err: "plug-in bridge: no addresses left"}), PodNotMade, `
			The pod default/web could not be made, 10s ago.
			The error is: plug-in bridge: no addresses left.
			Now: what was made for it is undone; the kubelet tries again`},
		{"it survived kills before it failed", history().runs("c1").add("c1", event.OOMKillSurvived{Kills: 2}).ends("c1", code(1)), Failed, `
			default/web/app (attempt 0) ended 10s ago with code 1, Error.
			It ended by itself, and nobody had asked it to. It had survived 2 kills by the OOM killer before.
			Now: it does not run; whether it is started again is the kubelet's to decide`},
		{"it was not started yet", history().add("c1", event.ContainerCreated{Names: app}), Created, `
			default/web/app (attempt 0) was created 10s ago, and was not started.
			Now: waits for the kubelet to start it`},
		{"nothing is known", history().add("s1", event.SandboxReady{}), Unheard, `
			default/web: the history does not go back to its start, and has no end of it.`},
		// PROPERTIES 65: what is under way is said while it is.
		{"CNI ADD hangs", history().under(sandbox, ops.Run, 240, ops.Work{Kind: ops.Plugin, What: "the CNI plug-in bridge (ADD)", Then: "what was made is undone"}), UnderWay, `
			default/web is being made: the CNI plug-in bridge (ADD) has not answered for 10 s, asked for by kubelet[812]; what was made is undone in 3 min 50 s.`},
		{"CNI ADD hangs after a failure", history().add("s1", event.SandboxNotMade{Names: sandbox, Err: "no addresses left"}).
			under(sandbox, ops.Run, 240, ops.Work{Kind: ops.Plugin, What: "the CNI plug-in bridge (ADD)", Then: "what was made is undone"}), PodNotMade, `
			The pod default/web could not be made, 10s ago.
			The error is: no addresses left.
			Now: it is being made: the CNI plug-in bridge (ADD) has not answered for 10 s, asked for by kubelet[812]; what was made is undone in 3 min 50 s`},
		{"a grace period runs", history().runs("c1").under(app, ops.Stop, 22, ops.Work{Kind: ops.Signal, What: "SIGTERM", Then: "SIGKILL"}), UnderWay, `
			default/web/app is being stopped: SIGTERM 10 s ago, asked for by kubelet[812]; SIGKILL in 12 s.`},
		{"a pull hangs after a crash", history().runs("c1").crashes("c1", code(1), 1).under(sandbox, ops.Pull, 600, ops.Work{Kind: ops.Registry, What: "the registry registry.example.com"}), Failed, `
			default/web/app (attempt 0) ended 11s ago with code 1, Error.
			It ended by itself, and nobody had asked it to.
			> one
			> two
			It is its first crash since it last ended well, as far as the history goes back.
			Now: default/web waits for the image app:v2, which is being pulled: the registry registry.example.com has not answered for 10 s, asked for by kubelet[812]; it is given up in 9 min 50 s`},
		{"a probe runs", history().runs("c1").under(app, ops.Exec, 0, ops.Work{}), Runs, `
			default/web/app (attempt 0) has run for 10s, and no end of one before it is in the history.
			Now: it runs the command of an exec, for 10 s, asked for by kubelet[812]`},
		{"a creation is refused after a crash", history().runs("c1").crashes("c1", code(1), 1).
			add("c2", event.ContainerNotMade{Names: again1, Err: "image app:v2: not found"}), NotCreated, `
			default/web/app (attempt 1) could not be created, 10s ago.
			The error is: image app:v2: not found.
			Now: its creation failed; the kubelet tries again if the pod is to go on`},
	} {
		a := Explain(tc.of.Answer, tc.of.ended, tc.of.now.Add(10*time.Second), tc.of.list, tc.of.now.Stamp().Add(10*time.Second))
		var got strings.Builder
		for _, line := range []string{a.What, a.Why} {
			if line != "" {
				got.WriteString("\n" + line)
			}
		}
		for _, line := range a.Wrote {
			got.WriteString("\n> " + line)
		}
		if a.Before != "" {
			got.WriteString("\n" + a.Before)
		}
		if a.Now != "" {
			got.WriteString("\nNow: " + a.Now)
		}
		want := strings.ReplaceAll(tc.want, "\t", "")
		if a.Cause != tc.cause || got.String() != want {
			t.Errorf("%s: %s%s\nwant %s%s", tc.name, a.Cause, got.String(), tc.cause, want)
		}
	}
}

// Of a pod, what keeps a container from running goes before a crash, and that before an end that
// was asked for. Of a container, only what is about it.
func TestWhatAPersonNeedsGoesFirst(t *testing.T) {
	h := history()
	side := app
	side.Container = "side"
	h.Of["d1"] = side
	h.runs("c1").runs("d1").crashes("c1", code(1), 1).add("d1", event.StopRequested{By: crictl}).ends("d1", code(143))
	if a := Explain(h.Answer, nil, h.now, nil, h.now.Stamp()); a.Cause != Failed || a.Of != "default/web/app" {
		t.Errorf("%+v", a)
	}
	h.Names, h.Name = side, "default/web/side"
	if a := Explain(h.Answer, nil, h.now, nil, h.now.Stamp()); a.Cause != StoppedByClient || a.Of != "default/web/side" {
		t.Errorf("%+v", a)
	}
	h.Names, h.Name = sandbox, "default/web"
	h.add("s1", event.ImageRefused{Container: "third", Err: "no"})
	if a := Explain(h.Answer, nil, h.now, nil, h.now.Stamp()); a.Cause != ImageRefused || a.Of != "default/web/third" {
		t.Errorf("%+v", a)
	}
}

// PROPERTIES 53: berth-logger was killed while berth was away, and the container ended of that. The
// answer was that it ended by itself.
func TestAContainerThatNobodyCouldReadIsExplained(t *testing.T) {
	for code, want := range map[uint32]Cause{141: LoggerKilled, 1: LoggerKilled, 0: Completed} {
		h := history().runs("c1").add("c1", event.LoggerKilled{}).ends("c1", exit.Fact{Code: code, Measured: true})
		a := Explain(h.Answer, nil, h.now, nil, h.now.Stamp())
		if a.Cause != want || want == LoggerKilled && !strings.Contains(a.Why, "Nobody could read what it wrote") {
			t.Errorf("code %d: %s, %s", code, a.Cause, a.Why)
		}
	}
}
