// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"berth/internal/host/cgroup"
	"berth/internal/host/pidfd"
)

// cgroups plugs package cgroup into the controller.
type cgroups struct {
	ooms *cgroup.OOMWatch // nil where the kernel did not give one
}

var errNoOOMWatch = fmt.Errorf("berth could not make a watch when it started: %w", errdefs.ErrUnavailable)

func (c cgroups) WatchOOM(id, dir string) (all bool, err error) {
	if c.ooms == nil {
		return false, errNoOOMWatch
	}
	return c.ooms.Watch(id, dir)
}

func (c cgroups) ForgetOOM(id string) {
	if c.ooms != nil {
		c.ooms.Forget(id)
	}
}

func (cgroups) Unnoticed(dir string) bool { return cgroup.Unnoticed(dir) }

func (cgroups) LimitHits(dir string) ([]uint64, error) { return cgroup.LimitHits(dir) }

func (cgroups) Of(pid uint32) (string, error)                 { return cgroup.Of(pid) }
func (cgroups) Dir(path string) string                        { return cgroup.Dir(path) }
func (cgroups) OOMKills(dir string) (uint64, error)           { return cgroup.OOMKills(dir) }
func (cgroups) OOMKillsBelow(dir string) (uint64, error)      { return cgroup.OOMKillsBelow(dir) }
func (cgroups) Delegate(dir string, uid int) error            { return cgroup.Delegate(dir, uid) }
func (cgroups) KillAll(ctx context.Context, dir string) error { return cgroup.KillAll(ctx, dir) }
func (cgroups) ThawAll(dir string) (thawed bool, err error)   { return cgroup.ThawAll(dir) }
func (cgroups) Force(dir string, p pidfd.Process) (held string, err error) {
	return cgroup.Force(dir, p)
}
func (cgroups) RemoveAll(ctx context.Context, path string) (bool, error) {
	return cgroup.RemoveAll(ctx, path)
}
