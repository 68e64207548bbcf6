// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/errkind"
)

// Pulled is how a pull ended.
type Pulled struct {
	Took  time.Duration // from the question to the registry until the image was unpacked
	Bytes int64         // that came from the registry
	Err   error         // nil if it succeeded
}

// Failure is an error of a pull whose kind is known: see [Kind].
type Failure struct {
	Kind string
	Err  error
}

// Error returns the text of the error.
func (e Failure) Error() string { return e.Err.Error() }

// Unwrap returns the error itself.
func (e Failure) Unwrap() error { return e.Err }

// stalledError is the error of a pull that made no progress.
type stalledError struct{ error }

// Kind returns the kind of failure of a pull's error, in a word for a metric: succeeded for nil,
// canceled where all callers have gone, refused by the policy, unverified where the policy could
// not ask for signatures, stalled, unauthorized, not_found, throttled, registry for other errors of
// the registry, unreachable, disk_full, invalid, unavailable where containerd is away, internal, or
// other.
func Kind(err error) string {
	var known Failure
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case err == nil:
		return "succeeded"
	case errkind.Full(err):
		return "disk_full"
	case errors.As(err, new(stalledError)):
		return "stalled"
	case errors.Is(err, errGone), errors.Is(err, context.Canceled):
		return "canceled"
	case errors.As(err, &known):
		return known.Kind
	case errdefs.IsUnauthorized(err), errdefs.IsPermissionDenied(err):
		return "unauthorized"
	case errdefs.IsNotFound(err):
		return "not_found"
	case errors.As(err, &dns), errors.As(err, &op), errors.Is(err, io.ErrUnexpectedEOF):
		return "unreachable"
	case errdefs.IsInvalidArgument(err):
		return "invalid"
	case errdefs.IsUnavailable(err):
		return "unavailable"
	case errdefs.IsInternal(err):
		return "internal"
	}
	return "other"
}
