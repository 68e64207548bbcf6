// SPDX-License-Identifier: Apache-2.0

package pod

import "berth/internal/state"

// observed is the state of one unit when its record is compared with the outside.
type observed struct {
	Phase     state.Phase
	Removing  bool
	Recorded  bool // a process is in the record
	Restoring bool // the shim was asked to restore a process, and it is not in the record
	Begun     bool // a start was begun: it left stdio
	Undoing   bool // a start was being taken back, and nothing says that the program ran
	Task      observedTask
	Process   observedProcess
}

// observedTask is what containerd says about the task of a unit.
type observedTask string

const (
	taskAbsent      observedTask = "absent"      // containerd knows no task
	taskCreated     observedTask = "created"     // its process was made and not started
	taskRunning     observedTask = "running"     // containerd says that it runs
	taskStopped     observedTask = "stopped"     // containerd has its exit code
	taskUnreachable observedTask = "unreachable" // there may be one, its shim does not answer
)

func observeTask(t TaskState, known, unreachable bool) observedTask {
	switch {
	case unreachable:
		return taskUnreachable
	case !known:
		return taskAbsent
	case t.Stopped:
		return taskStopped
	case t.Running:
		return taskRunning
	default:
		return taskCreated
	}
}

// action is what follows from an observation.
type action string

const (
	actionNone      action = "none"      // everything is as it should be, nothing runs
	actionLater     action = "later"     // whether it was started cannot be seen yet
	actionWatch     action = "watch"     // it runs: continue to watch
	actionAdopt     action = "adopt"     // it was started, only the record does not say so yet
	actionReport    action = "report"    // it ended: containerd has the code
	actionMeasure   action = "measure"   // it ended: the code has to be asked for
	actionLost      action = "lost"      // it ended, and nobody can know how
	actionAbandon   action = "abandon"   // its start was cut off, and may have taken effect: give up
	actionUndoStart action = "undostart" // its start was cut off before the program ran: take it back
	actionUndo      action = "undo"      // its creation was cut off
	actionRelease   action = "release"   // it ended, and its release goes on
)

// decide is the whole of recovery: one row per case, the same after a crash, after a clean stop,
// and after a lost connection to containerd.
//
// The kernel's word on a recorded process goes before containerd's: a task whose shim died is
// unknown to containerd while its process may well live.
func decide(o observed) action {
	switch o.Phase {
	case state.Creating:
		return actionUndo
	case state.Exited, state.NotReady:
		return actionRelease
	case state.Created:
		if o.Removing {
			return actionRelease
		}
		return decideCreated(o)
	}
	// RUNNING, READY
	switch o.Process {
	case processAlive:
		return actionWatch
	case processGone:
		switch o.Task {
		case taskStopped:
			return actionReport
		case taskRunning, taskCreated, taskUnreachable:
			return actionMeasure // the shim is about to learn it
		default:
			return actionLost
		}
	}
	switch o.Task {
	case taskRunning, taskCreated, taskUnreachable:
		return actionWatch
	case taskStopped:
		return actionReport
	default:
		if o.Process == processUnreachable {
			return actionNone // it may live without its shim: the audit looks again
		}
		return actionLost
	}
}

// decideCreated is decide for a container that was never started, or whose start was cut off.
func decideCreated(o observed) action {
	switch o.Task {
	case taskCreated:
		return actionUndoStart
	case taskRunning:
		return actionAdopt
	case taskStopped:
		if o.Undoing || !o.Recorded && !o.Restoring { // the process is on record before it is started: this one was made, and undone
			return actionUndoStart
		}
		return actionReport
	}
	switch { // its shim does not answer, or is dead
	case o.Undoing:
		return actionUndoStart
	case o.Process == processGone:
		return actionLost
	case o.Task == taskUnreachable: // it may just be at work on the start
		return actionLater
	case o.Process == processAlive, o.Process == processUnreachable:
		return actionAbandon
	case o.Recorded:
		return actionLost
	case o.Restoring: // its shim is gone, and what it has restored may live
		return actionAbandon
	case o.Begun: // whatever is left of it
		return actionUndoStart
	default:
		return actionNone
	}
}
