// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"errors"
	"net/http"

	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"

	"berth/internal/base/connection"
	"berth/internal/base/errkind"
	"berth/internal/images/image"
)

// failure translates an error of a pull, and adds of which kind an answer of a registry is.
func failure(err error) error {
	native := connection.Native(err)
	var answer remoteerrors.ErrUnexpectedStatus
	if errors.As(err, &answer) && !errkind.Full(native) {
		return image.Failure{Kind: kindOf(answer.StatusCode), Err: native}
	}
	return native
}

// cutOff reports whether a pull has ended because the way to the registry, or from the client to
// berth, was cut off, and why. The same pull may get further the next time.
func cutOff(err error) (reason string, cut bool) {
	var answer remoteerrors.ErrUnexpectedStatus
	switch kind := image.Kind(err); kind {
	case "unreachable", "stalled", "canceled", "throttled":
		return kind, true
	case "registry":
		return kind, errors.As(err, &answer) && answer.StatusCode >= http.StatusInternalServerError
	}
	return "", false
}

// kindOf returns the kind of failure that a code of HTTP stands for.
func kindOf(code int) string {
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return "unauthorized"
	case http.StatusNotFound:
		return "not_found"
	case http.StatusTooManyRequests:
		return "throttled"
	}
	return "registry"
}
