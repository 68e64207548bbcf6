// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"errors"
	"net/http"

	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"

	"berth/internal/connection"
	"berth/internal/image"
)

// failure translates an error of a pull, and keeps of which kind it is: the translation knows no
// errors of registries and of the network.
func failure(err error) error {
	native := connection.Native(err)
	var answer remoteerrors.ErrUnexpectedStatus
	if errors.As(err, &answer) {
		return image.Failure{Kind: kindOf(answer.StatusCode), Err: native}
	}
	if kind := image.Kind(err); kind != image.Kind(native) {
		return image.Failure{Kind: kind, Err: native}
	}
	return native
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
