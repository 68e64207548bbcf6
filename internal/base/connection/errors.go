// SPDX-License-Identifier: Apache-2.0

package connection

import (
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc/status"

	"berth/internal/base/errkind"
)

// Native translates an error of containerd to the sentinels of errdefs, and names the kind of one
// that has arrived as text: see package errkind. An error that has not come through gRPC, such as
// one from a containerd in this process, keeps all errors that it wraps.
func Native(err error) error {
	if _, remote := status.FromError(err); remote && err != nil {
		err = errgrpc.ToNative(err)
	}
	return errkind.Named(err)
}
