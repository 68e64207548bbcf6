// SPDX-License-Identifier: Apache-2.0

package image

import (
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/containerd/errdefs"
)

// Contain runs f, in which parsers of others work on the content of an image. A panic of f is
// ErrInternal, which names the image; the log gets the stack, and panicked, which may be nil, is
// called. It is for the boundaries of such code alone, which holds none of berth's locks.
func Contain[T any](log *slog.Logger, panicked func(), what string, f func() (T, error)) (v T, err error) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		log.Error("a panic over an image ended the call, and nothing else", "image", what, "panic", p, "stack", string(debug.Stack()))
		if panicked != nil {
			panicked()
		}
		err = fmt.Errorf("%s: what the image brings along made berth panic (%v); the log has the stack: %w", what, p, errdefs.ErrInternal)
	}()
	return f()
}
