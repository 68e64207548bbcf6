// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// code returns the gRPC code for an error of another room.
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
	case errdefs.IsInternal(err):
		return codes.Internal
	default:
		return codes.Unknown
	}
}

// Code returns the gRPC code with which a client sees an error of a handler.
func Code(err error) codes.Code { return status.Code(toStatus(err)) }

func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(code(err), err.Error())
}

// signatureFailure returns the error of a pull as the kubelet knows it: it looks at how the message
// begins, and at messages of the code Unknown alone.
func signatureFailure(err error) error {
	return status.Error(codes.Unknown, crierrors.ErrSignatureValidationFailed.Error()+": "+err.Error())
}

func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}
