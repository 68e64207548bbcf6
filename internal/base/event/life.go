// SPDX-License-Identifier: Apache-2.0

package event

import (
	"log/slog"
	"time"
)

// Names is how clients call a sandbox or a container. Events that begin a history have it.
type Names struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	UID       string `json:"uid"`                 // of the pod
	Sandbox   string `json:"sandbox,omitempty"`   // the ID of a container's sandbox
	Container string `json:"container,omitempty"` // "" for a sandbox
	Attempt   uint32 `json:"attempt"`             // the kubelet's
}

// Name returns POD, or POD/CONTAINER.
func (n Names) Name() string {
	if n.Container == "" {
		return n.Pod
	}
	return n.Pod + "/" + n.Container
}

// Of returns the names, so that the holder of an event can ask for them.
func (n Names) Of() Names { return n }

func (n Names) attr() slog.Attr { return slog.String("name", n.Name()) }

// SandboxReady reports that a sandbox was made.
type SandboxReady struct {
	Names
	By   Client        `json:"by,omitzero"`
	Took time.Duration `json:"took"`
	// Pinned is set if no process holds its namespaces. It is not in the line.
	Pinned bool `json:"pinned,omitempty"`
}

func (e SandboxReady) line() Line {
	return info(Call, "sandbox READY", e.By.attrs(e.attr(), slog.Duration("took", e.Took))...)
}

// SandboxNotMade reports that the creation of a sandbox failed. It is undone.
type SandboxNotMade struct {
	Names
	Err string `json:"err"`
}

func (e SandboxNotMade) line() Line { return warn(Call, "sandbox not made", e.Err, e.attr()) }

// ContainerCreated reports that a container was made.
type ContainerCreated struct {
	Names
	By      Client        `json:"by,omitzero"`
	Profile string        `json:"profile,omitempty"` // its seccomp profile, if that is from a registry
	Took    time.Duration `json:"took"`
}

func (e ContainerCreated) line() Line {
	attrs := []slog.Attr{e.attr(), slog.Duration("took", e.Took)}
	if e.Profile != "" {
		attrs = append(attrs, slog.String("profile", e.Profile))
	}
	return step(Call, "container CREATED", e.By.attrs(attrs...)...)
}

// ContainerNotMade reports that the creation of a container failed. It is undone.
type ContainerNotMade struct {
	Names
	Err string `json:"err"`
}

func (e ContainerNotMade) line() Line { return warn(Call, "container not made", e.Err, e.attr()) }

// HostPathSilent reports that a creation waits for the file system below a host_path.
type HostPathSilent struct {
	Path string `json:"path"`
}

func (e HostPathSilent) line() Line {
	return warn(Call, "file system of a host_path does not answer, the creation waits", "", slog.String("host_path", e.Path))
}

// Degraded reports that a container or sandbox works without a part of the request.
type Degraded struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

func (e Degraded) line() Line {
	return info(Call, "request degraded", slog.String("what", e.What), slog.String("why", e.Why))
}

// ContainerRunning reports that a container was started.
type ContainerRunning struct {
	By   Client        `json:"by,omitzero"`
	Pid  uint32        `json:"pid"`
	Took time.Duration `json:"took"`
}

func (e ContainerRunning) line() Line {
	return info(Call, "container RUNNING",
		e.By.attrs(slog.Uint64("pid", uint64(e.Pid)), slog.Duration("took", e.Took))...)
}

// StartFailed reports that a start failed. The container is EXITED next, unless berth stops.
type StartFailed struct {
	Err string `json:"err"`
}

func (e StartFailed) line() Line { return warn(Call, "start failed", e.Err) }

// StartUnanswered reports that the answer to a start was lost, and that the program runs.
type StartUnanswered struct {
	Err string `json:"err"`
}

func (e StartUnanswered) line() Line {
	return warn(Containerd, "start not answered, the program runs", e.Err)
}

// ExecPending reports that the process of a container still executes the OCI runtime's program.
type ExecPending struct {
	Still string `json:"still"`
}

func (e ExecPending) line() Line {
	return info(Kernel, "program does not run yet", slog.String("still", e.Still))
}

// TaskRetried reports that a task is made again: after a start that was cut off, or because a
// writable layer was not on the disk.
type TaskRetried struct {
	Err string `json:"err"`
}

func (e TaskRetried) line() Line { return warn(Berth, "task not made, it is tried again", e.Err) }

// ShimRestarted reports that the shim of a pod had died, and was started for a container.
type ShimRestarted struct{}

func (ShimRestarted) line() Line { return info(Berth, "shim had died, and was started again") }

// CheckpointLeft reports that the checkpoint that a container was restored from stays until the
// container is removed.
type CheckpointLeft struct {
	Err string `json:"err"`
}

func (e CheckpointLeft) line() Line {
	return warn(Berth, "checkpoint not removed after the restore", e.Err)
}

// StartTakenBack reports that a start that a kill of berth cut off is undone.
type StartTakenBack struct{}

func (StartTakenBack) line() Line {
	return info(Berth, "start that was cut off is undone, the container can be started again")
}

// StopRequested reports that a container or sandbox that runs is to be stopped.
type StopRequested struct {
	By Client `json:"by,omitzero"`
	// Pod is set if it is stopped as a part of its pod.
	Pod bool `json:"pod,omitempty"`
	// Shutdown is set if the machine is being shut down.
	Shutdown bool `json:"shutdown,omitempty"`
	// Timeout is how long it has between the stop signal and SIGKILL.
	Timeout time.Duration `json:"timeout"`
}

func (e StopRequested) line() Line {
	attrs := []slog.Attr{slog.Duration("timeout", e.Timeout)}
	if e.Pod {
		attrs = append(attrs, slog.Bool("pod", true))
	}
	if e.Shutdown {
		attrs = append(attrs, slog.Bool("shutdown", true))
	}
	return info(Call, "stop requested", e.By.attrs(attrs...)...)
}

// StopGoesOn reports that a stop on record goes on without the call that asked for it: berth was
// restarted meanwhile, or the client is gone.
type StopGoesOn struct {
	Left time.Duration `json:"left"` // until SIGKILL
}

func (e StopGoesOn) line() Line {
	return info(Berth, "stop goes on without the call that asked for it", slog.Duration("left", e.Left))
}

// RemovalRequested reports that a container or sandbox is to be removed. It is noted once.
type RemovalRequested struct {
	By Client `json:"by,omitzero"`
}

func (e RemovalRequested) line() Line { return step(Call, "removal requested", e.By.attrs()...) }

// StopSignalLost reports that a stop goes on to SIGKILL at once.
type StopSignalLost struct {
	Err string `json:"err"`
}

func (e StopSignalLost) line() Line { return warn(Berth, "stop signal not delivered, killing", e.Err) }

// TakesLong reports that a wait, or a call of another program, goes on for long. Its end is a
// [TookLong].
type TakesLong struct {
	What  string        `json:"what"`
	Image string        `json:"image,omitempty"` // if it is for an image
	By    Client        `json:"by,omitzero"`
	For   time.Duration `json:"for"`
}

func (e TakesLong) line() Line {
	return step(Berth, "takes long", e.By.attrs(waitAttrs(e.What, "for", e.For, e.Image)...)...) // the log has the end
}

// waitAttrs describes a wait that takes long.
func waitAttrs(what, key string, d time.Duration, image string) []slog.Attr {
	attrs := []slog.Attr{slog.String("what", what), slog.Duration(key, d.Round(time.Millisecond))}
	if image != "" {
		attrs = append(attrs, slog.String("image", image))
	}
	return attrs
}

// TookLong reports the end of a wait, or of a call of another program, that took more than a
// second.
type TookLong struct {
	What  string        `json:"what"`
	Image string        `json:"image,omitempty"` // if it was for an image
	By    Client        `json:"by,omitzero"`
	Took  time.Duration `json:"took"`
}

func (e TookLong) line() Line {
	l := info(Berth, "took long", e.By.attrs(waitAttrs(e.What, "took", e.Took, e.Image)...)...)
	if e.Took < 10*time.Second {
		l.Level = slog.LevelDebug
	}
	return l
}
