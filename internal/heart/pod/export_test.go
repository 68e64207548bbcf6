// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/state"
)

// What the tests see of the inside. They are not in this package themselves, because the world that
// they need (test/world) imports it.

// Unit is a sandbox or a container.
type Unit = unit

func (u *unit) ID() string                                 { return u.id }
func (u *unit) Pod() string                                { return u.pod.id }
func (u *unit) Now() *state.Status                         { return u.now() }
func (u *unit) SetProcess(p state.Process)                 { u.setProcess(p) }
func (u *unit) Settled() <-chan struct{}                   { return u.settled.Notice() }
func (u *unit) Removed() <-chan struct{}                   { return u.removed.Notice() }
func (u *unit) MarkRemoving() error                        { return markRemoving(context.Background(), u) }
func (u *unit) Change(f func(st *state.Status) bool) error { return u.change(f) }

// Unit returns the unit of an ID; nil when there is none.
func (c *Controller) Unit(id string) *Unit {
	u, _ := c.units.get(id)
	return u
}

// Observe asks the kernel about the process of a unit.
func (c *Controller) Observe(u *Unit) { c.recovery.processes.observe(u) }

// Records returns the records of all units, as a restart would load them.
func (c *Controller) Records() state.Loaded {
	var l state.Loaded
	for _, u := range c.units.all() {
		if u.isSandbox() {
			l.Sandboxes = append(l.Sandboxes, state.SandboxRecord{Sandbox: *u.sandbox, Status: *u.now()})
		} else {
			l.Containers = append(l.Containers, state.ContainerRecord{Container: *u.container, Status: *u.now()})
		}
	}
	return l
}

// BuiltInSandboxer returns the sandboxer of pods that need a process, with handlers that name none.
func BuiltInSandboxer(r Runtime) Sandboxer { return pauser{r, r} }

// ViewKey returns the key of the snapshot of the nth image that a container mounts.
func ViewKey(id string, n int) string { return viewKey(id, n) }

// ViewedBy returns the container that a key of ViewKey is of.
func ViewedBy(key string) (id string, isView bool) { return viewedBy(key) }

// WithImageRefs returns the mounts of a container, those of images with the reference of theirs.
func WithImageRefs(c *state.Container) []*runtimeapi.Mount { return withImageRefs(c) }

// LoadSeccomp reads a profile of seccomp.
func LoadSeccomp(path string) (*oci.LinuxSeccomp, error) { return loadSeccomp(path) }

// Effective returns the resources that a container has.
func Effective(c *state.Container, st *state.Status) *runtimeapi.LinuxContainerResources {
	return effective(&unit{container: c}, st)
}

// PinsEvery is how many audits pass between two looks at pins.
const PinsEvery = pinsEvery
