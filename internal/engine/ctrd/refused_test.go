// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/base/connection"
	"berth/internal/engine/shims"
	"berth/test/embedtest"
)

// PROPERTIES 33: a containerd that is not used, since another one has the pods, is asked nothing, also where
// it is inside this process: what it does not have is not gone.
func TestAContainerdThatIsRefusedIsAskedNothing(t *testing.T) {
	server := embedtest.Start(t, embedtest.Config(t))
	conn := connection.Absent(errors.New("it is starting"))
	log := slog.New(slog.DiscardHandler)
	c := New(conn, Config{Owner: "o", Snapshotter: "overlayfs", Shims: shims.New(shims.Config{Logger: log}), Logger: log})
	conn.Use(server.Client())
	ctx, cancel := context.WithCancel(t.Context())
	lost, accepted := make(chan error), make(chan struct{})
	var refuse atomic.Bool
	refuse.Store(true)
	done := make(chan error, 1)
	go func() {
		done <- c.Follow(ctx, Listener{
			Answered: func(string) error {
				if refuse.Load() {
					return errdefs.ErrUnavailable
				}
				return nil
			},
			Connected: func(context.Context) error { close(accepted); return nil },
			Lost: func(err error) {
				select {
				case lost <- err:
				case <-ctx.Done():
				}
			},
		})
	}()
	<-lost
	_, terr := c.TaskState(t.Context(), "c1")
	_, ierr := c.Inventory(t.Context())
	for what, err := range map[string]error{
		"the state of a task":   terr,
		"the list of all":       ierr,
		"to delete a container": c.DeleteContainer(t.Context(), "c1"),
		"to delete a snapshot":  c.DeleteSnapshot(t.Context(), "overlayfs", "c1"),
	} {
		if !errdefs.IsUnavailable(err) || errdefs.IsNotFound(err) {
			t.Errorf("it is asked for %s: %v", what, err)
		}
	}

	refuse.Store(false)
	for there := false; !there; {
		select {
		case <-lost:
		case <-accepted:
			there = true
		}
	}
	if err := c.DeleteContainer(t.Context(), "c1"); err != nil && !errdefs.IsNotFound(err) {
		t.Errorf("it is used, and asked nothing: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
