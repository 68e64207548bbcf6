// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/types/known/anypb"

	"berth/internal/connection"
	"berth/internal/pod"
)

// restoring returns the options of a task that is restored from a checkpoint: those of its
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

// RestoreTask has CRIU restore the process of a task that CreateTask has made for that. The error
// has the reason that CRIU's log in the directory work gives. ErrFailedPrecondition says that CRIU
// is not there, or cannot do it.
func (c *Containerd) RestoreTask(ctx context.Context, id, work string) error {
	err := c.StartTask(ctx, id)
	switch {
	case err == nil:
		return nil
	case noCRIU(err):
		return fmt.Errorf("restore task %s: CRIU is not installed on this node; install the package criu: %w", id, errdefs.ErrFailedPrecondition)
	}
	return fmt.Errorf("restore task %s: %w%s", id, refusal(err), reason(work, "restore.log"))
}

// ApplyChanges makes the changes that a tar of a layer has in a writable layer. What a call that was
// cut off has made is made again.
func (c *Containerd) ApplyChanges(ctx context.Context, snapshotter, key, changes string) error {
	if err := leased(ctx, c, key, func(ctx context.Context) error { return applyChanges(ctx, c, snapshotter, key, changes) }); err != nil {
		return fmt.Errorf("apply changes to layer %s: %w", key, connection.Native(err))
	}
	return nil
}

func applyChanges(ctx context.Context, c *Containerd, snapshotter, key, changes string) error {
	f, err := os.Open(changes)
	if err != nil {
		return err
	}
	defer f.Close()
	digester := digest.Canonical.Digester()
	size, err := io.Copy(digester.Hash(), f)
	if err != nil {
		return fmt.Errorf("read %s: %w", filepath.Base(changes), err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	desc := ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageLayer,
		Digest:    digester.Digest(),
		Size:      size,
	}
	mounts, err := c.client.SnapshotService(snapshotter).Mounts(ctx, key)
	if err != nil {
		return err
	}
	ref := "restore-" + key
	// What a call that was cut off has written need not be of the same file.
	if err := c.client.ContentStore().Abort(ctx, ref); err != nil && !errdefs.IsNotFound(connection.Native(err)) {
		return err
	}
	if err := content.WriteBlob(ctx, c.client.ContentStore(), ref, f, desc); err != nil {
		return err
	}
	_, err = c.client.DiffService().Apply(ctx, desc, mounts)
	if cerr := ctx.Err(); cerr != nil {
		err = errors.Join(err, cerr)
	}
	return err
}
