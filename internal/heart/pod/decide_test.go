// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"

	"berth/internal/heart/state"
)

// foundStages are the stages at which a comparison finds a start.
var foundStages = []stage{stageNone, stageMaking, stageRestoring, stageMade, stageTakingBack, stageGivenUp}

// Every combination of record, start, task and process has a row: the first one that fits says what
// follows, and each row is needed.
func TestDecide(t *testing.T) {
	const yes, no = "yes", "no"
	// What a row does not say does not matter.
	rows := []struct {
		phase    state.Phase
		removing string
		stopping string
		attempt  stage
		holds    string
		due      string
		task     observedTask
		process  observedProcess
		want     action
		fits     int
	}{
		// A creation that was cut off.
		{phase: state.Creating, want: actionUndo},
		// What ended is given back, also if containerd carries out late what nobody waits for any more.
		{phase: state.Exited, holds: no, task: taskCreated, want: actionHold},
		{phase: state.Exited, holds: no, task: taskRunning, want: actionHold},
		{phase: state.Exited, holds: no, task: taskStopped, want: actionHold},
		{phase: state.Exited, removing: no, due: no, want: actionNone},
		{phase: state.Exited, want: actionRelease},
		{phase: state.NotReady, holds: no, task: taskCreated, want: actionHold},
		{phase: state.NotReady, holds: no, task: taskRunning, want: actionHold},
		{phase: state.NotReady, holds: no, task: taskStopped, want: actionHold},
		{phase: state.NotReady, removing: no, due: no, want: actionNone},
		{phase: state.NotReady, want: actionRelease},
		// It is removed before it was started.
		{phase: state.Created, removing: yes, holds: no, task: taskCreated, want: actionHold},
		{phase: state.Created, removing: yes, holds: no, task: taskRunning, want: actionHold},
		{phase: state.Created, removing: yes, holds: no, task: taskStopped, want: actionHold},
		{phase: state.Created, removing: yes, want: actionRelease},
		// Its start failed, and is being settled.
		{phase: state.Created, attempt: stageGivenUp, want: actionAbandon},
		// Its start was cut off. The program runs, or has not run.
		{phase: state.Created, task: taskRunning, stopping: yes, want: actionAbandon},
		{phase: state.Created, task: taskRunning, want: actionAdopt},
		{phase: state.Created, task: taskCreated, want: actionUndoStart},
		{phase: state.Created, attempt: stageTakingBack, want: actionUndoStart}, // berth was killed in the midst of that
		{phase: state.Created, attempt: stageNone, task: taskStopped, want: actionUndoStart},
		{phase: state.Created, attempt: stageMaking, task: taskStopped, want: actionUndoStart},
		{phase: state.Created, task: taskStopped, want: actionReport},
		// Its shim does not answer, or is dead.
		{phase: state.Created, process: processGone, want: actionLost},
		{phase: state.Created, task: taskUnreachable, want: actionLater},
		{phase: state.Created, process: processAlive, want: actionAbandon},
		{phase: state.Created, process: processUnreachable, want: actionAbandon},
		{phase: state.Created, attempt: stageMade, want: actionLost}, // a VM that is gone
		{phase: state.Created, attempt: stageRestoring, want: actionAbandon},
		{phase: state.Created, attempt: stageMaking, want: actionUndoStart},
		{phase: state.Created, attempt: stageNone, want: actionNone},
		// It runs: the kernel's word goes first.
		{process: processAlive, want: actionWatch},
		{task: taskStopped, want: actionReport},
		{task: taskAbsent, process: processGone, want: actionLost},
		{process: processGone, want: actionMeasure}, // the shim is about to learn it
		{task: taskAbsent, process: processUnreachable, want: actionNone},
		{task: taskAbsent, process: processUnknown, want: actionLost},
		{want: actionWatch},
	}
	is := func(b bool, want string) bool { return want == "" || (want == yes) == b }
	for _, o := range observations() {
		got, found := decide(o), false
		for i := range rows {
			r := &rows[i]
			if (r.phase == "" || r.phase == o.Phase) && is(o.Removing, r.removing) && is(o.Stopping, r.stopping) &&
				(r.attempt == "" || r.attempt == o.Attempt) && is(o.Holds, r.holds) && is(o.Due, r.due) &&
				(r.task == "" || r.task == o.Task) && (r.process == "" || r.process == o.Process) {
				if r.fits++; got != r.want {
					t.Errorf("%+v: %s, want %s", o, got, r.want)
				}
				found = true
				break
			}
		}
		if !found {
			t.Errorf("%+v has no row", o)
		}
	}
	for _, r := range rows {
		if r.fits == 0 {
			t.Errorf("row %+v fits nothing", r)
		}
	}
}

// observations returns all combinations.
func observations() []observed {
	either := []bool{false, true}
	all := []observed{{}}
	all = with(all, []state.Phase{state.Creating, state.Created, state.Running, state.Exited, state.Ready, state.NotReady},
		func(o *observed, v state.Phase) { o.Phase = v })
	all = with(all, either, func(o *observed, v bool) { o.Removing = v })
	all = with(all, either, func(o *observed, v bool) { o.Stopping = v })
	all = with(all, foundStages, func(o *observed, v stage) { o.Attempt = v })
	all = with(all, either, func(o *observed, v bool) { o.Holds = v })
	all = with(all, either, func(o *observed, v bool) { o.Due = v })
	all = with(all, []observedTask{taskAbsent, taskCreated, taskRunning, taskStopped, taskUnreachable},
		func(o *observed, v observedTask) { o.Task = v })
	return with(all, []observedProcess{processAlive, processGone, processUnreachable, processUnknown},
		func(o *observed, v observedProcess) { o.Process = v })
}

// with returns each of all with each of values.
func with[T any](all []observed, values []T, set func(*observed, T)) []observed {
	var more []observed
	for _, o := range all {
		for _, v := range values {
			set(&o, v)
			more = append(more, o)
		}
	}
	return more
}
