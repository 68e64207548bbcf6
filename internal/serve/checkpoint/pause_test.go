// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

// PROPERTIES 28: a process did not freeze in time, which the OCI runtime answers as it refuses a
// request. The others were frozen by then, and stayed so for ever.
func TestAPauseThatFailedHalfwayIsUndone(t *testing.T) {
	n := newNode(t)
	n.frozen["/cg/c1"] = true
	n.fail["pause"] = fmt.Errorf("runc did not terminate successfully: timeout of 10s reached waiting for the cgroup to freeze: %w",
		errdefs.ErrFailedPrecondition)
	if err := n.service.Checkpoint(t.Context(), "c1", filepath.Join(n.dir, "c1.tar"), 0); !errdefs.IsFailedPrecondition(err) {
		t.Error(err)
	}
	n.expectNothingLeft(t)
}

// PROPERTIES 28: whatever the error says of a pause that was asked for: what it froze is let go.
// One that was not asked for is somebody else's, which TestAContainerThatIsPausedAlreadyStaysPaused
// has.
func TestNoClassOfAnErrorKeepsAContainerPaused(t *testing.T) {
	for _, class := range []error{
		errdefs.ErrAlreadyExists,
		errdefs.ErrFailedPrecondition,
		errdefs.ErrInvalidArgument,
		errdefs.ErrNotFound,
		errdefs.ErrNotImplemented,
		errdefs.ErrUnavailable,
	} {
		n := newNode(t)
		n.frozen["/cg/c1"] = true
		n.fail["pause"] = class
		if err := n.service.Checkpoint(t.Context(), "c1", filepath.Join(n.dir, "c1.tar"), 0); !errors.Is(err, class) {
			t.Error(err)
		}
		n.expectNothingLeft(t)
	}
}
