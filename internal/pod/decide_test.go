// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"

	"berth/internal/state"
)

// Every combination of record, task and process has a row: the first one that fits says what
// follows, and each row is needed.
func TestDecide(t *testing.T) {
	const some = "*"
	rows := []struct {
		phase              state.Phase
		removing, recorded string
		restoring, begun   string // "": it does not matter
		undoing            string
		task               observedTask
		process            observedProcess
		want               action
		fits               int
	}{
		// A creation that was cut off.
		{phase: state.Creating, removing: some, recorded: some, task: some, process: some, want: actionUndo},
		// What ended is given back.
		{phase: state.Exited, removing: some, recorded: some, task: some, process: some, want: actionRelease},
		{phase: state.NotReady, removing: some, recorded: some, task: some, process: some, want: actionRelease},
		// Never started, or started without its success being recorded.
		{phase: state.Created, removing: "yes", recorded: some, task: some, process: some, want: actionRelease},
		{phase: state.Created, removing: "no", recorded: some, task: taskCreated, process: some, want: actionUndoStart},
		{phase: state.Created, removing: "no", recorded: some, task: taskRunning, process: some, want: actionAdopt},
		{phase: state.Created, removing: "no", recorded: some, undoing: "yes", task: some, process: some, want: actionUndoStart}, // berth was killed in the midst of that
		{phase: state.Created, removing: "no", recorded: "no", restoring: "no", task: taskStopped, process: some, want: actionUndoStart},
		{phase: state.Created, removing: "no", recorded: some, task: taskStopped, process: some, want: actionReport},
		{phase: state.Created, removing: "no", recorded: some, task: some, process: processGone, want: actionLost},
		{phase: state.Created, removing: "no", recorded: some, task: taskUnreachable, process: some, want: actionLater},
		{phase: state.Created, removing: "no", recorded: some, task: some, process: processAlive, want: actionAbandon}, // its shim died
		{phase: state.Created, removing: "no", recorded: some, task: some, process: processUnreachable, want: actionAbandon},
		{phase: state.Created, removing: "no", recorded: "yes", task: taskAbsent, process: processUnknown, want: actionLost},                     // a VM that is gone
		{phase: state.Created, removing: "no", recorded: some, restoring: "yes", task: taskAbsent, process: processUnknown, want: actionAbandon}, // its shim died
		{phase: state.Created, removing: "no", recorded: some, begun: "yes", task: some, process: processUnknown, want: actionUndoStart},
		{phase: state.Created, removing: "no", recorded: some, begun: "no", task: some, process: processUnknown, want: actionNone},
		// It runs: the kernel's word goes first.
		{phase: some, removing: some, recorded: some, task: some, process: processAlive, want: actionWatch},
		{phase: some, removing: some, recorded: some, task: taskStopped, process: some, want: actionReport},
		{phase: some, removing: some, recorded: some, task: taskAbsent, process: processGone, want: actionLost},
		{phase: some, removing: some, recorded: some, task: some, process: processGone, want: actionMeasure}, // the shim is about to learn it
		{phase: some, removing: some, recorded: some, task: taskAbsent, process: processUnreachable, want: actionNone},
		{phase: some, removing: some, recorded: some, task: taskAbsent, process: processUnknown, want: actionLost},
		{phase: some, removing: some, recorded: some, task: some, process: some, want: actionWatch},
	}
	is := func(b bool, want string) bool { return want == some || want == "" || (want == "yes") == b }
	for _, o := range observations() {
		got, found := decide(o), false
		for i := range rows {
			r := &rows[i]
			if (r.phase == some || r.phase == o.Phase) && is(o.Removing, r.removing) && is(o.Recorded, r.recorded) && is(o.Restoring, r.restoring) && is(o.Begun, r.begun) && is(o.Undoing, r.undoing) &&
				(r.task == some || r.task == o.Task) && (r.process == some || r.process == o.Process) {
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

// observations are all combinations.
func observations() []observed {
	var all []observed
	for _, phase := range []state.Phase{state.Creating, state.Created, state.Running, state.Exited, state.Ready, state.NotReady} {
		for _, removing := range []bool{false, true} {
			for _, recorded := range []bool{false, true} {
				for _, restoring := range []bool{false, true} {
					for _, begun := range []bool{false, true} {
						for _, undoing := range []bool{false, true} {
							for _, task := range []observedTask{taskAbsent, taskCreated, taskRunning, taskStopped, taskUnreachable} {
								for _, process := range []observedProcess{processAlive, processGone, processUnreachable, processUnknown} {
									all = append(all, observed{phase, removing, recorded, restoring, begun, undoing, task, process})
								}
							}
						}
					}
				}
			}
		}
	}
	return all
}
