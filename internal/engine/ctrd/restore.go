// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"fmt"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"berth/internal/base/connection"
	"berth/internal/heart/pod"
)

// restoring returns the options of a task that is restored from a checkpoint: the options of its
// container, with the directories for CRIU. Options of a task take the place of its container's.
func restoring(ctx context.Context, c *Containerd, id string, from pod.Unpacked) (*anypb.Any, error) {
	o, err := c.client.ContainerService().Get(ctx, id)
	if err != nil {
		return nil, connection.Native(err)
	}
	var opts runcoptions.Options
	if err := typeurl.UnmarshalTo(o.Runtime.Options, &opts); err != nil {
		return nil, fmt.Errorf("its runtime's options are not runc's: %w", err)
	}
	opts.CriuImagePath, opts.CriuWorkPath = from.Images, from.Work
	return typeurl.MarshalAnyToProto(&opts)
}

// RestoreTask implements [pod.Tasks]. It returns ErrFailedPrecondition if CRIU is absent, or cannot
// do it.
func (c *Containerd) RestoreTask(ctx context.Context, id, work string) error {
	err := c.StartTask(ctx, id)
	switch {
	case err == nil:
		return nil
	case says(err, noCRIU, id):
		return fmt.Errorf("restore task %s: CRIU is not installed on this node; install the package criu: %w", id, errdefs.ErrFailedPrecondition)
	}
	return fmt.Errorf("restore task %s: %w%s", id, refusal(err), reason(work, "restore.log"))
}
