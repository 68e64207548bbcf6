// SPDX-License-Identifier: Apache-2.0

package event

import (
	"log/slog"
	"strings"
)

// RecordDamaged says that a record, and what belongs to it, is left as it is.
type RecordDamaged struct {
	Err string `json:"err"`
}

func (e RecordDamaged) line() Line {
	return warn(Berth, "record cannot be read and is left alone; remove it to release its objects", e.Err)
}

// RecordsMended says that bits of the records were changed on their disk, and put right.
type RecordsMended struct {
	Bits int      `json:"bits"`
	Kept []string `json:"kept,omitempty"` // where the damaged files are
}

func (e RecordsMended) line() Line {
	return warn(Berth, "records were damaged on their disk and put right; look for faults of the disk and of the memory", "",
		slog.Int("bits", e.Bits), slog.Any("kept", e.Kept))
}

// RecordsLost says that a part of the records cannot be read, and is not on record any more.
type RecordsLost struct {
	What []string `json:"what"`
	Kept []string `json:"kept,omitempty"` // where the damaged files are
}

func (e RecordsLost) line() Line {
	return warn(Berth, "records were damaged on their disk and not all could be read; pods that are not on record any more are removed",
		strings.Join(e.What, "; "), slog.Any("kept", e.Kept))
}

// StatusDeleted says that a status was found without the rest of its record.
type StatusDeleted struct{}

func (StatusDeleted) line() Line {
	return info(Berth, "status without a record deleted, an earlier berth was killed while it deleted the record")
}

// NameTaken says that another sandbox or container has the same name and attempt.
type NameTaken struct {
	Names
}

func (e NameTaken) line() Line {
	return warn(Berth, "name also held by another sandbox or container", "", e.attr())
}

// LabelNotReserved says that another pod may get the SELinux label of this one.
type LabelNotReserved struct {
	Err string `json:"err"`
}

func (e LabelNotReserved) line() Line {
	return warn(Berth, "SELinux label not reserved, another pod may get the same", e.Err)
}

// NotCompared says that the records could not be compared with containerd. It is tried again.
type NotCompared struct {
	Err string `json:"err"`
}

func (e NotCompared) line() Line { return warn(Berth, "records not compared with containerd", e.Err) }

// Compared says what followed from a record and what is outside.
type Compared struct {
	Phase   string `json:"phase"`
	Task    string `json:"task"`
	Process string `json:"process"`
	Action  string `json:"action"`
}

func (e Compared) line() Line {
	return info(Berth, "record compared with containerd",
		slog.String("phase", e.Phase),
		slog.String("task", e.Task),
		slog.String("process", e.Process),
		slog.String("action", e.Action))
}

// ProcessNotIdentified says that whether a start succeeded is not known yet.
type ProcessNotIdentified struct {
	Err string `json:"err"`
}

func (e ProcessNotIdentified) line() Line { return warn(Kernel, "process not identified", e.Err) }

// TaskUnclear says that a shim does not say whether the container runs.
type TaskUnclear struct {
	Err string `json:"err,omitempty"`
}

func (e TaskUnclear) line() Line {
	return warn(Containerd, "state of the task not clear", e.Err)
}

// StartNotRecorded says that a start that succeeded is recorded later.
type StartNotRecorded struct {
	Err string `json:"err"`
}

func (e StartNotRecorded) line() Line { return warn(Berth, "start not recorded", e.Err) }

// StartNotKept says that it is recorded later that a start is not taken back.
type StartNotKept struct {
	Err string `json:"err"`
}

func (e StartNotKept) line() Line {
	return warn(Berth, "decision to keep the start not recorded", e.Err)
}

// LateTask says that containerd made a task after the release, which is released, too.
type LateTask struct{}

func (LateTask) line() Line {
	return info(Containerd, "task was made after the release, it is released, too")
}

// LateTaskNotRecorded says that such a task is released later.
type LateTaskNotRecorded struct {
	Err string `json:"err"`
}

func (e LateTaskNotRecorded) line() Line {
	return warn(Berth, "task that was made after the release not recorded", e.Err)
}

// ContainerdLost says that the connection to containerd broke.
type ContainerdLost struct {
	Err string `json:"err"`
}

func (e ContainerdLost) line() Line {
	return warn(Containerd, "the connection to containerd is lost; connecting again", e.Err)
}

// ContainerdConnected says that berth is connected to containerd and knows its images. Before that
// it was not, or the connection was lost.
type ContainerdConnected struct{}

func (ContainerdConnected) line() Line { return info(Berth, "berth is connected to containerd") }

// ContainerdAbsent says that an attempt to connect failed, for another reason than the one before.
type ContainerdAbsent struct {
	Err string `json:"err"`
}

func (e ContainerdAbsent) line() Line {
	return warn(Containerd, "containerd is not there yet; trying again", e.Err)
}
