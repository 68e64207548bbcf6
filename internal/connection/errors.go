// SPDX-License-Identifier: Apache-2.0

package connection

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
)

// Native translates an error to the sentinels of errdefs.
func Native(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	for _, known := range []error{errdefs.ErrNotFound, errdefs.ErrAlreadyExists, errdefs.ErrInvalidArgument, errdefs.ErrFailedPrecondition, errdefs.ErrResourceExhausted, errdefs.ErrUnavailable, errdefs.ErrInternal} {
		if errors.Is(err, known) {
			return err // from an in-memory service
		}
	}
	return errgrpc.ToNative(err)
}
