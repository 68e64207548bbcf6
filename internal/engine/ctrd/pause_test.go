// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

func (s fakeTasks) Pause(context.Context, *tasks.PauseTaskRequest, ...grpc.CallOption) (*emptypb.Empty, error) {
	return nil, s.f.pause
}

// PROPERTIES 28: a pause that failed after the shim was asked for it may have frozen processes. It
// had the same error as one that was never asked for, and was not undone.
func TestAPauseThatMayHaveTakenEffectIsReportedAsAsked(t *testing.T) {
	f := &fake{pause: errors.New("runc did not terminate successfully: exit status 1: timeout of 10s reached waiting for the cgroup to freeze")}
	f.add("c1", "", false)
	a := f.adapter(t)
	defer a.stop()
	asked, err := a.PauseTask(t.Context(), "c1")
	if !asked || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("asked: %v, %v", asked, err)
	}
	f.tasks["c1"].Status = task.Status_PAUSED
	asked, err = a.PauseTask(t.Context(), "c1")
	if asked || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("paused by somebody else: asked: %v, %v", asked, err)
	}
	if asked, err = a.PauseTask(t.Context(), "c2"); asked || !errdefs.IsNotFound(err) {
		t.Errorf("absent: asked: %v, %v", asked, err)
	}
}
