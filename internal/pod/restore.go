// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/exit"
	"berth/internal/spec"
	"berth/internal/state"
)

// source is what a container is made from: an image, or a checkpoint and the image that the
// checkpoint names.
type source struct {
	image      Image
	checkpoint *state.Checkpoint // nil for an image alone
}

// sourceOf finds what a container of the sandbox p is made from. A reference that is an absolute
// path names the archive of a checkpoint, whose image is pulled if it is not on this node.
func (c *creator) sourceOf(ctx context.Context, p *unit, config *runtimeapi.ContainerConfig) (source, error) {
	ref := imageRef(config)
	if !filepath.IsAbs(ref) {
		img, err := c.images.Resolve(ref)
		if err == nil && img.Checkpoint {
			err = fmt.Errorf("image %s: it holds a checkpoint of a container, and berth restores from an archive on this node alone; name the path of one: %w",
				ref, errdefs.ErrNotImplemented)
		}
		return source{image: img}, err
	}
	if err := c.mayRestore(p); err != nil {
		return source{}, fmt.Errorf("restore from %s: %w", ref, err)
	}
	said, err := c.checkpoints.Read(ctx, ref)
	if err != nil {
		return source{}, err
	}
	img, err := c.imageOf(ctx, said)
	if err != nil {
		return source{}, fmt.Errorf("image of checkpoint %s: %w", ref, err)
	}
	return source{
		image: img,
		checkpoint: &state.Checkpoint{
			Archive: ref,
			Image:   cmp.Or(said.Image, said.ImageRef),
		},
	}, nil
}

// mayRestore returns why no container of the sandbox p can be restored.
func (c *creator) mayRestore(p *unit) error {
	_, mapped := spec.UserNamespace(p.sandbox.Config)
	switch {
	case c.checkpoints == nil:
		return fmt.Errorf("this berth does not restore containers: %w", errdefs.ErrNotImplemented)
	case !p.handler.HostProcess || p.handler.Options != "" && p.handler.Options != OptionsRunc:
		return fmt.Errorf("the runtime handler %q of sandbox %s is not runc's, which restores with CRIU: %w", p.handler.Name, p.id, errdefs.ErrFailedPrecondition)
	case mapped:
		return fmt.Errorf("sandbox %s has a user namespace of its own, and berth does not restore into one: %w", p.id, errdefs.ErrNotImplemented)
	}
	return nil
}

// imageOf returns the image that a checkpoint was made with: the very same, also if its name has
// moved on to another one since.
func (c *creator) imageOf(ctx context.Context, said Checkpoint) (Image, error) {
	exact := cmp.Or(said.ImageRef, said.Image)
	img, err := c.images.Resolve(exact)
	if errdefs.IsNotFound(err) {
		from := said.Image
		if from == "" || strings.Contains(exact, "@") {
			from = exact // by its digest
		}
		if err := c.images.Pull(ctx, from); err != nil {
			return img, err
		}
		if img, err = c.images.Resolve(exact); errdefs.IsNotFound(err) {
			return img, fmt.Errorf("%s was pulled, and is not %s, which the checkpoint was made with: %w", from, exact, errdefs.ErrFailedPrecondition)
		}
	}
	if err == nil && img.Checkpoint {
		err = fmt.Errorf("%s holds a checkpoint itself: %w", exact, errdefs.ErrInvalidArgument)
	}
	return img, err
}

// unpack unpacks the checkpoint that u is restored from, if it is, and changes the specification as
// the restore needs it. The mounts in it are those of the request, whatever the checkpoint had.
func (c *creator) unpack(ctx context.Context, u *unit, s *oci.Spec) error {
	if u.container.Checkpoint == nil {
		return nil
	}
	dir, err := c.files.MakeCheckpoint(u.id)
	if err != nil {
		return err
	}
	return c.checkpoints.Unpack(ctx, u.container.Checkpoint.Archive, dir, s)
}

// restored reports whether u is a container that is restored from a checkpoint.
func (u *unit) restored() bool { return !u.isSandbox() && u.container.Checkpoint != nil }

// imageName is the name of the image of a container.
func (u *unit) imageName() string {
	if u.restored() {
		return u.container.Checkpoint.Image
	}
	return imageRef(u.container.Config)
}

// restore is launch for a container that is restored from a checkpoint. Its process is not made
// before it runs, so that the record says first that there may be one, and in which cgroup: whatever
// cuts the restore off, what it has left there is found and ended, or is adopted once the shim names
// it.
func (s *starter) restore(ctx context.Context, u *unit) (state.Process, error) {
	made, err := s.runtime.Spec(ctx, u.id)
	if err != nil {
		return state.Process{}, err
	}
	from := UnpackedIn(s.files.Checkpoint(u.id))
	if _, err := s.taskMaker.make(ctx, u); err != nil {
		return state.Process{}, err
	}
	stdio := u.stdio()
	defer func() { _ = stdio.Started() }() // also when the shim was not asked, and never will be
	if err := u.change(func(st *state.Status) bool { st.Restoring = made.Linux.CgroupsPath; return true }); err != nil {
		return state.Process{}, err
	}
	if err := s.beforeRun(ctx, u); err != nil {
		return state.Process{}, err
	}
	err = s.runtime.RestoreTask(ctx, u.id, from.Work)
	if err == nil {
		err = s.checkTarget(ctx, u) // a restore joins the namespaces
	}
	if serr := stdio.Started(); err == nil {
		err = serr
	}
	if err != nil {
		return state.Process{}, err
	}
	return s.watchRestored(ctx, u)
}

// watchRestored has the witnesses watch the process that the shim has restored, and records it. One
// that has ended by now is a start that succeeded: the shim has its code.
func (s *starter) watchRestored(ctx context.Context, u *unit) (state.Process, error) {
	st, err := s.runtime.TaskState(ctx, u.id)
	if err != nil {
		return state.Process{}, err
	}
	var proc state.Process
	if st.Running {
		proc, err = s.processes.watch(u, st.Pid)
		switch {
		case errdefs.IsNotFound(err): // it has ended, and the shim is about to learn it
			st, err = s.runtime.WaitTask(ctx, u.id)
		case err == nil:
			// The process could have ended before it was watched, and its PID be another's now. The
			// shim reaps it, and says so: if it still runs, then what is watched is it.
			st, err = s.runtime.TaskState(ctx, u.id)
		}
		if err != nil {
			s.processes.forget(u) // it may be another's, and is not to be killed by its PID
			return proc, err
		}
	}
	switch {
	case st.Stopped:
		s.processes.forget(u)
		s.witnesses.reportFor(u, taskFact(u.id, st))
		return state.Process{}, nil
	case !st.Running:
		return proc, errors.New("the shim does not say that it has restored a process")
	}
	if err := s.processes.record(u, proc); err != nil {
		return proc, err
	}
	s.witnesses.listen(u)
	if s.processes.ended(u) {
		// The witnesses may have said so before it was on record, when they were not listened to.
		s.witnesses.reportFor(u, exit.Fact{ID: u.id, Origin: exit.Audit})
	}
	// What was restored is not needed any more, and may be as large as the memory of a process. What
	// stays, because berth is killed before this, is removed with the container.
	if err := s.files.RemoveCheckpoint(u.id); err != nil {
		s.obs.Event(u.id, "the checkpoint that it was restored from cannot be removed", err)
	}
	return proc, nil
}

// endRestored ends the processes that a restore of u has left, if one was begun and no process is
// on record. found says that there was one.
func (p *processes) endRestored(ctx context.Context, u *unit) (found bool, err error) {
	group := u.now().Restoring
	if group == "" {
		return false, nil
	}
	if found, err = p.cgroups.RemoveAll(ctx, group); err != nil {
		return found, fmt.Errorf("end what the restore of %s has left: %w", u.id, err)
	}
	return found, nil
}

// restoredGroup is the cgroup of what the shim was asked to restore for u, or "" where the record
// names the process or none was asked for.
func (p *processes) restoredGroup(u *unit) string {
	if u.now().Restoring == "" {
		return ""
	}
	return p.askedGroup(u)
}

// askedGroup is the cgroup that the runtime was asked to make for u.
func (p *processes) askedGroup(u *unit) string {
	path, err := spec.CgroupDir(u.handler.SystemdCgroup, u.pod.sandbox.Config.GetLinux().GetCgroupParent(), u.id)
	if err != nil {
		return "" // a container is not made with such a parent
	}
	return p.cgroups.Dir(path)
}

// waitEnd returns when the process of u has ended, as the shim has it. The task of a container that
// was not restored yet has no process to wait for: that is ErrNotFound.
func waitEnd(ctx context.Context, u *unit) (TaskState, error) {
	if u.restored() && u.process().Pid == 0 {
		st, err := u.workload.State(ctx)
		switch {
		case err != nil || st.Stopped:
			return st, err
		case st.Pid == 0:
			return TaskState{}, fmt.Errorf("task %s has no process: %w", u.id, errdefs.ErrNotFound)
		}
	}
	return u.workload.Wait(ctx)
}

// endAbandonedRestore ends what the restore of u has made, when the start was given up. It is an
// error as long as the shim may be at work on it, or its process lives. Where the shim is gone and
// there is nothing to end, the program may have run and ended: nobody can know.
func (s *settler) endAbandonedRestore(ctx context.Context, u *unit) error {
	var err error
	_ = u.evidence.kill(func() error {
		var found bool
		if found, err = s.processes.endRestored(ctx, u); !found {
			return errNoProcess // nothing was killed that this would explain
		}
		return nil
	})
	if err != nil {
		return err
	}
	st, err := u.workload.State(ctx)
	switch {
	case errdefs.IsNotFound(err):
		if u.now().Restoring != "" && u.evidence.endedAlone() {
			u.evidence.add(exit.Fact{
				ID:      u.id,
				Origin:  exit.Audit,
				Message: "its restore was cut off and its shim is gone: whether it ran is not known",
			}, false)
		}
		return nil
	case err != nil:
		return err
	case st.Stopped:
		return absent(s.askShim(ctx, u))
	case st.Running:
		return fmt.Errorf("its process %d has not ended yet", st.Pid)
	}
	return nil
}
