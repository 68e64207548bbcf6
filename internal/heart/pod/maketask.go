// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"os"

	"github.com/containerd/errdefs"

	"berth/internal/base/event"
)

// mostTries bounds how often a task is made after a start that was cut off.
const mostTries = 3

// taskMaker makes the tasks of containers.
type taskMaker struct {
	layers  Layers
	tasks   Tasks
	files   Files
	output  *output
	detours detours
	obs     Observer
}

// make makes the stdio and the task of u. u.task must be held. After a start that was cut off it is
// tried several times: containerd does not know whether the shim is still at work on that one, and
// two at a time disturb each other. It is tried once more where the writable layer is not on the
// disk, with a new one. A containerd that runs beside berth removes the directories that it has no
// record of, such as those that a power cut has left, and may have listed them before it made this
// layer, which then has the name of one of them.
func (m *taskMaker) make(ctx context.Context, u *unit) (pid uint32, err error) {
	for try := 1; ; try++ {
		pid, err = m.attempt(ctx, u)
		lost := try == 1 && errors.Is(err, ErrLayerLost)
		if err == nil || !u.attempt().again && !lost || try == mostTries || ctx.Err() != nil {
			return pid, err
		}
		m.obs.Note(u.id, event.TaskRetried{Err: err.Error()})
		if terr := m.detours.takeBack(ctx, u); terr != nil {
			return 0, errors.Join(err, terr)
		}
	}
}

func (m *taskMaker) attempt(ctx context.Context, u *unit) (pid uint32, err error) {
	stdio, err := m.output.create(u)
	if err != nil {
		return 0, err
	}
	stdin, stdout, stderr := stdio.FIFOs()
	req := TaskRequest{
		ID:          u.id,
		Endpoint:    u.pod.now().Endpoint,
		IO:          TaskIO{Stdin: stdin, Stdout: stdout, Stderr: stderr, Terminal: u.container.Config.GetTty()},
		Snapshotter: u.container.Snapshotter,
		SnapshotKey: u.id,
	}
	if u.pod.isPinned() {
		req.Pod = u.pod.id
	}
	if u.restored() {
		from := UnpackedIn(m.files.Checkpoint(u.id))
		// each time: a start that is taken back loses them
		if _, err := os.Stat(from.Changes); err == nil {
			if err := m.layers.ApplyChanges(ctx, u.container.Snapshotter, u.id, from.Changes); err != nil {
				return 0, err
			}
		}
		req.Restore = &from
	}
	pid, err = m.tasks.CreateTask(ctx, req)
	if errdefs.IsNotFound(err) && u.pod.isPinned() {
		if err = m.detours.revive(ctx, u); err == nil {
			pid, err = m.tasks.CreateTask(ctx, req)
		}
	}
	if err == nil && u.restored() {
		return pid, nil // the shim takes the ends of its stdio when it restores
	}
	if serr := stdio.Started(); err == nil {
		err = serr
	}
	return pid, err
}
