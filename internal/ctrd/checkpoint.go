// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/rootfs"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/types/known/emptypb"

	"berth/internal/connection"
)

// checkpointPrefix begins the annotations of an image that holds a checkpoint of a container.
const checkpointPrefix = "org.criu.checkpoint."

// isCheckpoint reports whether the annotations of a manifest say that the image holds a checkpoint.
func isCheckpoint(annotations map[string]string) bool {
	for k := range annotations {
		if strings.HasPrefix(k, checkpointPrefix) {
			return true
		}
	}
	return false
}

// PauseTask keeps the processes of a task from running. It reports whether the shim was asked for
// that: then some of them may be frozen whatever the error says, and the caller undoes it. It is not
// asked where the task does not run, which may be since somebody else has paused it. The class of an
// error is for the client alone.
func (c *Containerd) PauseTask(ctx context.Context, id string) (asked bool, err error) {
	p, err := c.taskStatus(ctx, id)
	if err != nil {
		return false, fmt.Errorf("pause task %s: does it run? %w", id, err)
	}
	if st := p.GetStatus(); st != task.Status_RUNNING {
		return false, fmt.Errorf("pause task %s: it is %s: %w", id, st, errdefs.ErrFailedPrecondition)
	}
	_, err = askShim(connection.Namespaced(ctx), c, id, func(ctx context.Context) (*emptypb.Empty, error) {
		return c.client.TaskService().Pause(ctx, &tasks.PauseTaskRequest{ContainerID: id})
	})
	if err != nil {
		return true, fmt.Errorf("pause task %s: %w", id, refusal(connection.Native(err)))
	}
	return true, nil
}

// ResumeTask lets the processes of a paused task run on. A task that is not paused, or that is not
// there, is a success.
func (c *Containerd) ResumeTask(ctx context.Context, id string) error {
	p, err := c.taskStatus(ctx, id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("resume task %s: is it paused? %w", id, err)
	}
	if st := p.GetStatus(); st != task.Status_PAUSED && st != task.Status_PAUSING {
		return nil
	}
	_, err = askShim(connection.Namespaced(ctx), c, id, func(ctx context.Context) (*emptypb.Empty, error) {
		return c.client.TaskService().Resume(ctx, &tasks.ResumeTaskRequest{ContainerID: id})
	})
	if err = connection.Native(err); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("resume task %s: %w", id, err)
	}
	return nil
}

// CheckpointTask has CRIU write the state of the processes of a task into the directory images, and
// its log into work. The processes are left as they are. ErrFailedPrecondition says that CRIU is
// not there, or cannot do it.
func (c *Containerd) CheckpointTask(ctx context.Context, id, images, work string) error {
	opts, err := typeurl.MarshalAnyToProto(&runcoptions.CheckpointOptions{
		OpenTcp:             true, // the connections end where it is restored; the checkpoint is for looking at
		ExternalUnixSockets: true,
		FileLocks:           true,
		ImagePath:           images,
		WorkPath:            work,
	})
	if err != nil {
		return fmt.Errorf("encode options of a checkpoint: %w", err)
	}
	_, err = askShim(connection.Namespaced(ctx), c, id, func(ctx context.Context) (*tasks.CheckpointTaskResponse, error) {
		return c.client.TaskService().Checkpoint(ctx, &tasks.CheckpointTaskRequest{ContainerID: id, Options: opts})
	})
	if err == nil {
		return nil
	}
	err = refusal(connection.Native(err))
	if noCRIU(err) {
		return fmt.Errorf("checkpoint task %s: CRIU is not installed on this node; install the package criu: %w", id, errdefs.ErrFailedPrecondition)
	}
	return fmt.Errorf("checkpoint task %s: %w%s", id, err, reason(work, "dump.log"))
}

// noCRIU reports whether the OCI runtime did not find CRIU.
func noCRIU(err error) bool {
	text := strings.ToLower(err.Error())
	return strings.Contains(text, "criu") && (strings.Contains(text, "executable file not found") || strings.Contains(text, "no such file or directory"))
}

// reason is the first error in one of CRIU's logs, which are removed together with the directory.
func reason(work, name string) string {
	f, err := os.Open(filepath.Join(work, name))
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 16<<20))
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(b) {
		if bytes.Contains(line, []byte("Error")) {
			return "; CRIU says: " + strings.TrimSpace(string(line[:min(len(line), 500)]))
		}
	}
	return ""
}

// changesLease is how long what a comparison of layers makes in containerd is kept if berth is
// killed before it has removed it.
const changesLease = time.Hour

// leased calls f with a lease that keeps what f has containerd make, and deletes the lease
// afterwards.
func leased(ctx context.Context, c *Containerd, layer string, f func(ctx context.Context) error) error {
	// Nothing interrupts the calls about the lease: a lease that containerd makes after it was
	// deleted would stay until it expires.
	detached, cancel := context.WithTimeout(connection.Namespaced(context.WithoutCancel(ctx)), viewTimeout)
	defer cancel()
	lease, err := c.client.LeasesService().Create(detached, leases.WithRandomID(), leases.WithExpiration(changesLease), leases.WithLabel(connection.LabelOwner, c.owner))
	if err != nil {
		return err
	}
	defer func() {
		detached, cancel := context.WithTimeout(connection.Namespaced(context.WithoutCancel(ctx)), viewTimeout)
		defer cancel()
		if err := c.client.LeasesService().Delete(detached, lease); err != nil {
			c.log.Warn("a lease cannot be deleted; it expires", "layer", layer, "err", err)
		}
	}()
	return f(leases.WithLease(connection.Namespaced(ctx), lease.ID))
}

// WriteChanges writes what a writable layer has changed, as the tar of an image layer.
func (c *Containerd) WriteChanges(ctx context.Context, snapshotter, key string, w io.Writer) error {
	err := leased(ctx, c, key, func(ctx context.Context) error { return writeChanges(ctx, c, snapshotter, key, w) })
	if err != nil {
		return fmt.Errorf("compare layer %s with its image: %w", key, connection.Native(err))
	}
	return nil
}

func writeChanges(ctx context.Context, c *Containerd, snapshotter, key string, w io.Writer) error {
	_, err := rootfs.CreateDiff(ctx, key, c.client.SnapshotService(snapshotter), changesTo{w})
	return err
}

// changesTo compares two snapshots, and writes the tar of a layer to w. containerd's own comparison
// writes it into the content store first, where a hole in a file takes as much room as anything else.
type changesTo struct{ w io.Writer }

// Compare writes what upper has changed.
func (c changesTo) Compare(ctx context.Context, lower, upper []mount.Mount, _ ...diff.Opt) (ocispec.Descriptor, error) {
	err := mount.WithReadonlyTempMount(ctx, lower, func(before string) error {
		return mount.WithReadonlyTempMount(ctx, upper, func(after string) error {
			return archive.WriteDiff(ctx, c.w, before, after)
		})
	})
	return ocispec.Descriptor{}, err
}
