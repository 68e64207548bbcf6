// SPDX-License-Identifier: Apache-2.0

package layers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"berth/internal/base/connection"
)

// fragile is a snapshotter that dies after some changes, until it is mended.
type fragile struct {
	snapshots.Snapshotter
	has   map[string]snapshots.Info
	left  int             // changes until it dies
	dirty map[string]bool // layers with changes
}

var errDead = errors.New("it is dead")

func (f *fragile) change(do func() error) error {
	if f.left == 0 {
		return errDead
	}
	f.left--
	return do()
}

func (f *fragile) Stat(_ context.Context, key string) (snapshots.Info, error) {
	if i, ok := f.has[key]; ok {
		return i, nil
	}
	return snapshots.Info{}, errdefs.ErrNotFound
}

func (f *fragile) add(key, parent string, opts []snapshots.Opt) ([]mount.Mount, error) {
	return nil, f.change(func() error {
		if _, ok := f.has[key]; ok {
			return errdefs.ErrAlreadyExists
		}
		i := snapshots.Info{Name: key, Parent: parent}
		for _, o := range opts {
			if err := o(&i); err != nil {
				return err
			}
		}
		f.has[key] = i
		return nil
	})
}

func (f *fragile) View(_ context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	return f.add(key, parent, opts)
}

func (f *fragile) Prepare(_ context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	return f.add(key, parent, opts)
}

func (f *fragile) Remove(_ context.Context, key string) error {
	return f.change(func() error {
		if _, ok := f.has[key]; !ok {
			return errdefs.ErrNotFound
		}
		delete(f.has, key)
		delete(f.dirty, key)
		if len(f.has) == 0 {
			return errors.New("nothing holds the parent any more")
		}
		return nil
	})
}

// PROPERTIES 4: the renewal of a layer can be cut off at each step and asked for again, and its
// parent is held all the time.
func TestTheRenewalOfALayerCanBeCutOff(t *testing.T) {
	for steps := range 5 {
		t.Run(fmt.Sprint(steps), func(t *testing.T) {
			labels := map[string]string{connection.LabelOwner: "o", "some": "label"}
			f := &fragile{
				has:   map[string]snapshots.Info{"c1": {Name: "c1", Parent: "p", Labels: labels}},
				left:  steps,
				dirty: map[string]bool{"c1": true},
			}
			client, err := containerd.New("", containerd.WithServices(
				containerd.WithSnapshotters(map[string]snapshots.Snapshotter{"fragile": f})))
			try(t, err)
			l := &Layers{client: connection.Through(client), owner: "o"}
			renew := func() error { return l.RenewSnapshot(t.Context(), "fragile", "c1", "spare") }
			if err := renew(); (err == nil) != (steps == 4) {
				t.Fatalf("after %d steps: %v", steps, err)
			}
			f.left = 100
			try(t, renew())
			i, ok := f.has["c1"]
			if !ok || i.Parent != "p" || !maps.Equal(i.Labels, labels) || len(f.has) != 1 || f.dirty["c1"] {
				t.Errorf("after %d steps and a second try: %+v, dirty %v", steps, f.has, f.dirty)
			}
		})
	}
}
