// SPDX-License-Identifier: Apache-2.0

package event

import (
	"log/slog"
	"strings"
)

// RecordDamaged reports that a record and its objects outside are left as they are.
type RecordDamaged struct {
	Err string `json:"err"`
}

func (e RecordDamaged) line() Line {
	return warn(Berth, "record cannot be read and is left alone; remove it to release its objects", e.Err)
}

// RecordsMended reports that bits of the records were changed on their disk, and repaired.
type RecordsMended struct {
	Bits int      `json:"bits"`
	Kept []string `json:"kept,omitempty"` // where the damaged files are
}

func (e RecordsMended) line() Line {
	return warn(Berth, "records were damaged on their disk and put right; look for faults of the disk and of the memory", "",
		slog.Int("bits", e.Bits), slog.Any("kept", e.Kept))
}

// RecordsLost reports that a part of the records cannot be read, and is not on record any more.
type RecordsLost struct {
	What []string `json:"what"`
	Kept []string `json:"kept,omitempty"` // where the damaged files are
}

func (e RecordsLost) line() Line {
	return warn(Berth, "records were damaged on their disk and not all could be read; pods that are not on record any more are removed",
		strings.Join(e.What, "; "), slog.Any("kept", e.Kept))
}

// StatusDeleted reports that a status was found without the rest of its record.
type StatusDeleted struct{}

func (StatusDeleted) line() Line {
	return info(Berth, "status without a record deleted, an earlier berth was killed while it deleted the record")
}

// NameTaken reports that another sandbox or container has the same name and attempt.
type NameTaken struct {
	Names
}

func (e NameTaken) line() Line {
	return warn(Berth, "name also held by another sandbox or container", "", e.attr())
}

// LabelNotReserved reports that another pod may get the SELinux label of this one.
type LabelNotReserved struct {
	Err string `json:"err"`
}

func (e LabelNotReserved) line() Line {
	return warn(Berth, "SELinux label not reserved, another pod may get the same", e.Err)
}

// NotCompared reports that the records could not be compared with containerd. It is tried again.
type NotCompared struct {
	Err string `json:"err"`
}

func (e NotCompared) line() Line { return warn(Berth, "records not compared with containerd", e.Err) }

// Compared reports the decision about a record and the state outside.
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

// ProcessNotIdentified reports that the success of a start is not known yet.
type ProcessNotIdentified struct {
	Err string `json:"err"`
}

func (e ProcessNotIdentified) line() Line { return warn(Kernel, "process not identified", e.Err) }

// TaskUnclear reports that a shim does not answer whether the container runs.
type TaskUnclear struct {
	Err string `json:"err,omitempty"`
}

func (e TaskUnclear) line() Line { return warn(Containerd, "state of the task not clear", e.Err) }

// StartNotRecorded reports that a start that succeeded is recorded later.
type StartNotRecorded struct {
	Err string `json:"err"`
}

func (e StartNotRecorded) line() Line { return warn(Berth, "start not recorded", e.Err) }

// StartNotKept reports that the decision not to take a start back is recorded later.
type StartNotKept struct {
	Err string `json:"err"`
}

func (e StartNotKept) line() Line {
	return warn(Berth, "decision to keep the start not recorded", e.Err)
}

// LateTask reports that containerd made a task after the release, and that it is released, too.
type LateTask struct{}

func (LateTask) line() Line {
	return info(Containerd, "task was made after the release, it is released, too")
}

// LateTaskNotRecorded reports that such a task is released later.
type LateTaskNotRecorded struct {
	Err string `json:"err"`
}

func (e LateTaskNotRecorded) line() Line {
	return warn(Berth, "task that was made after the release not recorded", e.Err)
}

// ContainerdLost reports that the connection to containerd broke.
type ContainerdLost struct {
	Err string `json:"err"`
}

func (e ContainerdLost) line() Line {
	return warn(Containerd, "the connection to containerd is lost; connecting again", e.Err)
}

// ContainerdConnected reports that berth is connected to containerd and knows its images. Before
// that it was not, or the connection was lost.
type ContainerdConnected struct{}

func (ContainerdConnected) line() Line { return info(Berth, "berth is connected to containerd") }

// ContainerdAbsent reports that an attempt to connect failed, for another reason than the one
// before.
type ContainerdAbsent struct {
	Err string `json:"err"`
}

func (e ContainerdAbsent) line() Line {
	return warn(Containerd, "containerd is not there yet; trying again", e.Err)
}
