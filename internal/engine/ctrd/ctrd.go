// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"

	"berth/internal/base/clock"
	"berth/internal/base/connection"
	"berth/internal/base/retry"
	"berth/internal/engine/layers"
	"berth/internal/engine/shims"
)

// Config holds the settings of the adapter.
type Config struct {
	Owner string // this berth's ID
	// Clock makes instants of the stamps of containerd and its shims; nil: that of this process.
	Clock       *clock.Clock
	Snapshotter string // of new containers
	// Snapshotters are others, which some runtime handlers have instead.
	Snapshotters []string
	// SetAside reports whether a task is there although containerd does not know it, because its
	// shim has not answered since containerd started. It may ask the shim, which takes a second at
	// most, and less when ctx ends. It is nil if containerd itself knows all tasks.
	SetAside func(ctx context.Context, id string) bool
	// StateDir is a directory on the disk that shims and OCI runtimes write to.
	StateDir string
	// Runs asks the kernel whether the process of a container runs. It is nil if the kernel cannot
	// be asked, and returns false if the answer is unknown.
	Runs func(id string) bool
	// Shims are the shims of the node.
	Shims *shims.Shims
	// Cleanups makes the programs by which containerd cleans up after shims and containers; nil: it
	// does so by the programs of the shims, and no shim is shared.
	Cleanups *shims.Cleanups
	// ShimStarts returns the OCI runtime of a handler by its name, if berth's shim may start
	// containers in its place; "" otherwise. It is nil if the shim may not in any case.
	ShimStarts func(handler string) string
	// UnsyncedLayers is Unsynced of [layers.Config].
	UnsyncedLayers bool
	// Trust is that of [layers.Config].
	Trust func(ctx context.Context, snapshotter, chainID string) error
	// Measured is that of [layers.Config].
	Measured func(snapshotter, key string, usage snapshots.Usage, took time.Duration)
	Logger   *slog.Logger
}

// Containerd is the adapter: tasks, objects, the inventory and the subscription to events. Its
// methods may be called from any goroutine.
type Containerd struct {
	*layers.Layers
	*PodShims
	snapshotters []string
	runs         func(id string) bool

	replaced replaced
	orphans  orphanSearch
	// following: containerd has answered on the subscription that there is.
	following atomic.Bool

	life       context.Context // ends with stop
	end        context.CancelFunc
	background sync.WaitGroup // of goroutines that outlive the call that began them
}

// New makes the adapter on a connection, which the caller closes.
func New(conn *connection.Connection, cfg Config) *Containerd {
	c := &Containerd{
		Layers: layers.New(conn, layers.Config{
			Owner:    cfg.Owner,
			Unsynced: cfg.UnsyncedLayers,
			Trust:    cfg.Trust,
			Measured: cfg.Measured,
			Logger:   cfg.Logger,
		}),
		PodShims: &PodShims{
			client:     conn,
			owner:      cfg.Owner,
			clock:      cfg.Clock,
			log:        cfg.Logger,
			asker:      &asker{setAside: cfg.SetAside, state: cfg.StateDir, of: map[string]int{}},
			shims:      cfg.Shims,
			cleanups:   cfg.Cleanups,
			shimStarts: cfg.ShimStarts,
		},
		snapshotters: append(slices.Clone(cfg.Snapshotters), cfg.Snapshotter),
		runs:         cfg.Runs,
	}
	if c.clock == nil {
		c.clock = clock.New(nil)
	}
	if c.shimStarts == nil {
		c.shimStarts = func(string) string { return "" }
	}
	if c.asker.setAside == nil {
		c.asker.setAside = func(context.Context, string) bool { return false }
	}
	if c.runs == nil {
		c.runs = func(string) bool { return false }
	}
	c.life, c.end = context.WithCancel(context.Background())
	return c
}

// stop ends background work and waits for it, but not for a shim that does not answer.
func (c *Containerd) stop() {
	c.end()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.background.Wait()
		c.shims.Wait()
	}()
	retry.Sleep(done, answerTimeout)
}

// Version returns the version of containerd.
func (c *Containerd) Version(ctx context.Context) (string, error) {
	v, err := c.client.Version(connection.Namespaced(ctx))
	return v.Version, connection.Native(err)
}

// oldest is the first version of containerd that has a store of sandboxes, which berth needs.
var oldest = [3]int{1, 7, 0}

// TooOldError is the version of a containerd that berth cannot work with.
type TooOldError string

// Error names both versions.
func (v TooOldError) Error() string {
	return fmt.Sprintf("containerd %s answers, and berth needs %d.%d or newer: upgrade it, or remove containerd.address, and berth brings its own",
		string(v), oldest[0], oldest[1])
}

// ConditionReason is the reason of the condition RuntimeReady of CRI.
func (TooOldError) ConditionReason() string { return "ContainerdTooOld" }

// numbersOf returns the numbers of a version of containerd, such as v2.4.2 or 1.7.24~ds1; false
// if it is not one.
func numbersOf(text string) (v [3]int, ok bool) {
	n, _ := fmt.Sscanf(strings.TrimPrefix(text, "v"), "%d.%d.%d", &v[0], &v[1], &v[2])
	return v, n == len(v)
}
