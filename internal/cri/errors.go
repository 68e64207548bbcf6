// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// code is the gRPC code of an error of another room.
func code(err error) codes.Code {
	switch {
	case err == nil:
		return codes.OK
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errdefs.IsInvalidArgument(err):
		return codes.InvalidArgument
	case errdefs.IsNotFound(err):
		return codes.NotFound
	case errdefs.IsAlreadyExists(err):
		return codes.AlreadyExists
	case errdefs.IsFailedPrecondition(err):
		return codes.FailedPrecondition
	case errdefs.IsUnavailable(err):
		return codes.Unavailable
	case errdefs.IsNotImplemented(err):
		return codes.Unimplemented
	case errdefs.IsPermissionDenied(err):
		return codes.PermissionDenied
	case errdefs.IsResourceExhausted(err):
		return codes.ResourceExhausted
	default:
		return codes.Unknown
	}
}

func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(code(err), err.Error())
}

func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

// Explain turns a gRPC error into a sentence for a person.
func Explain(err error) error {
	st, ok := status.FromError(err)
	if !ok || err == nil {
		return err
	}
	switch st.Code() {
	case codes.Unavailable:
		return fmt.Errorf("no berth answers: %s; is `berth serve` running?", st.Message())
	case codes.Unimplemented:
		return fmt.Errorf("this berth cannot do that yet: %s", st.Message())
	default:
		return errors.New(st.Message())
	}
}
