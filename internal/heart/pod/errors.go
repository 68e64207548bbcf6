// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
)

// ctxError returns why ctx ended: the cause with which it was cancelled, or one of the two errors
// of package context.
func ctxError(ctx context.Context) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, context.DeadlineExceeded):
		return context.DeadlineExceeded
	case cause == nil || errors.Is(cause, context.Canceled):
		return context.Canceled
	default:
		return cause
	}
}

// absent turns ErrNotFound into success: the thing to release is gone.
func absent(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// interrupted returns the error of an operation whose context [unit.interrupt] may have ended: if
// it did, its reason takes precedence over err.
func interrupted(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if err == nil || cause == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w (%s)", cause, err.Error())
}

// unanswered reports whether an error means that there was no answer: the connection broke, or the
// time was over.
func unanswered(err error) bool {
	return errdefs.IsUnavailable(err) || errdefs.IsDeadlineExceeded(err) || errdefs.IsCanceled(err)
}

// answered reports whether an error is the answer of the shim or of the OCI runtime, so that asking
// again would get the same.
func answered(err error) bool {
	return errdefs.IsInvalidArgument(err) || errdefs.IsFailedPrecondition(err) || errdefs.IsNotFound(err) || errdefs.IsNotImplemented(err)
}
