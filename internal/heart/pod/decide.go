// SPDX-License-Identifier: Apache-2.0

package pod

import "berth/internal/heart/state"

// observed is the state of one unit when its record is compared with the outside.
type observed struct {
	Phase    state.Phase
	Removing bool
	// Stopping is set if a stop of the pod was requested.
	Stopping bool
	// Attempt is the stage of a start that is not in progress.
	Attempt stage
	// Holds is set if the record holds the task.
	Holds bool
	// Due is set if there is something to release now.
	Due     bool
	Task    observedTask
	Process observedProcess
}

// observedTask is the state of a unit's task in containerd.
type observedTask string

const (
	taskAbsent      observedTask = "absent"      // containerd knows no task
	taskCreated     observedTask = "created"     // its process was made and not started
	taskRunning     observedTask = "running"     // it runs
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

// action is the consequence of an observation.
type action string

const (
	actionNone      action = "none"      // everything is as it should be, nothing runs
	actionLater     action = "later"     // whether it was started cannot be seen yet
	actionWatch     action = "watch"     // it runs: continue to watch
	actionAdopt     action = "adopt"     // it was started, but the record does not have that yet
	actionReport    action = "report"    // it ended: containerd has the code
	actionMeasure   action = "measure"   // it ended: the code has to be asked for
	actionLost      action = "lost"      // it ended, and its exit code cannot be known
	actionAbandon   action = "abandon"   // its start came to nothing, or may have: settle that
	actionUndoStart action = "undostart" // its start was cut off before the program ran
	actionUndo      action = "undo"      // its creation was cut off
	actionHold      action = "hold"      // it ended, and a task was made after its release
	actionRelease   action = "release"   // it ended, and its release goes on
)

// decide holds the whole of recovery, one row per case: the same after a crash, after a clean stop,
// and after a lost connection to containerd.
//
// The kernel's answer about a recorded process precedes containerd's: a task whose shim died is
// unknown to containerd while its process may well live.
func decide(o observed) action {
	switch o.Phase {
	case state.Creating:
		return actionUndo
	case state.Exited, state.NotReady:
		return decideEnded(o)
	case state.Created:
		if o.Removing {
			return decideEnded(o)
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

// decideEnded decides about a unit that has ended, or that is removed before it was started.
func decideEnded(o observed) action {
	switch {
	case !o.Holds && (o.Task == taskCreated || o.Task == taskRunning || o.Task == taskStopped):
		return actionHold // containerd carried out a start that was given up
	case o.Removing, o.Due:
		return actionRelease
	default:
		return actionNone // it stays until a client removes it
	}
}

// decideCreated decides about a container that was never started, or whose start was cut off or
// given up.
func decideCreated(o observed) action {
	switch {
	case o.Attempt == stageGivenUp:
		return actionAbandon
	case o.Task == taskCreated:
		return actionUndoStart
	case o.Task == taskRunning && o.Stopping:
		return actionAbandon // its pod was stopped before it was known to run
	case o.Task == taskRunning:
		return actionAdopt
	case o.Attempt == stageTakingBack:
		return actionUndoStart
	case o.Task == taskStopped && (o.Attempt == stageMade || o.Attempt == stageRestoring):
		return actionReport
	case o.Task == taskStopped:
		return actionUndoStart // a process is on record before it is started: this one was not
	}
	switch { // its shim does not answer, or is dead
	case o.Process == processGone:
		return actionLost
	case o.Task == taskUnreachable: // it may just be at work on the start
		return actionLater
	case o.Process == processAlive, o.Process == processUnreachable:
		return actionAbandon
	}
	switch o.Attempt { // nothing of it is visible
	case stageMade:
		return actionLost
	case stageRestoring: // the restored process may live
		return actionAbandon
	case stageMaking: // remains, in any state
		return actionUndoStart
	default:
		return actionNone
	}
}
