// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/pod"
)

// usernsTimeout bounds the questions about the user namespaces of one handler.
const usernsTimeout = 10 * time.Second

// userNamespaces knows which handlers can give pods a user namespace of their own: the OCI runtime
// has to mount with mapped owners, and the snapshotter, on this kernel, has to shift the owners of
// the layers. Each handler is asked in the background, and for a pod that wants one, until there is
// an answer, which is kept.
type userNamespaces struct {
	handlers    map[string]pod.Handler
	snapshotter string // of handlers without one of their own
	runtimes    *ociRuntimes
	mapsOwners  func(ctx context.Context, snapshotter string) (bool, error)

	mu       sync.Mutex
	answered map[string]error // by handler; nil: it can
}

func newUserNamespaces(handlers map[string]pod.Handler, snapshotter string, runtimes *ociRuntimes,
	mapsOwners func(ctx context.Context, snapshotter string) (bool, error),
) *userNamespaces {
	return &userNamespaces{
		handlers:    handlers,
		snapshotter: snapshotter,
		runtimes:    runtimes,
		mapsOwners:  mapsOwners,
		answered:    map[string]error{},
	}
}

// probe asks all handlers, each until it has answered, once ready returns.
func (u *userNamespaces) probe(ctx context.Context, ready func(context.Context) error, log *slog.Logger) {
	untilAnswered(ctx, slices.Sorted(maps.Keys(u.handlers)), ready, func(ctx context.Context, name string) error {
		err := u.check(ctx, name)
		if errdefs.IsNotImplemented(err) {
			log.Info("pods of this runtime handler cannot have user namespaces", "handler", name, "why", err)
			return nil
		}
		return err
	}, func(name string, err error) {
		log.Warn("no user namespaces are advertised for a runtime handler until it is known whether it can make them; asking again", "handler", name, "err", err)
	})
}

// known reports whether a handler is known to make user namespaces. It does not wait.
func (u *userNamespaces) known(handler string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	err, ok := u.answered[handler]
	return ok && err == nil
}

// check returns nil if a handler can give pods a user namespace; otherwise the error, which is
// ErrNotImplemented when that is certain, says why not.
func (u *userNamespaces) check(ctx context.Context, handler string) error {
	u.mu.Lock()
	err, ok := u.answered[handler]
	u.mu.Unlock()
	if ok {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, usernsTimeout)
	defer cancel()
	err = u.ask(ctx, u.handlers[handler])
	if err == nil || errdefs.IsNotImplemented(err) {
		u.mu.Lock()
		u.answered[handler] = err
		u.mu.Unlock()
	}
	return err
}

func (u *userNamespaces) ask(ctx context.Context, h pod.Handler) error {
	if h.Sandboxer != "" || !h.HostProcess || h.Options != pod.OptionsRunc {
		return fmt.Errorf("only handlers of runc's shim, without a sandboxer, can make them: %w", errdefs.ErrNotImplemented)
	}
	has, err := u.runtimes.features(ctx, h)
	if err != nil {
		return err
	}
	l := has.Linux
	if l == nil || !slices.Contains(l.Namespaces, "user") || l.MountExtensions == nil ||
		l.MountExtensions.IDMap == nil || l.MountExtensions.IDMap.Enabled == nil || !*l.MountExtensions.IDMap.Enabled {
		return fmt.Errorf("%s does not mount with mapped owners: %w", ociRuntime(h), errdefs.ErrNotImplemented)
	}
	name := cmp.Or(h.Snapshotter, u.snapshotter)
	switch ok, err := u.mapsOwners(ctx, name); {
	case err != nil:
		return err
	case !ok:
		return fmt.Errorf("snapshotter %s does not shift the owners of files, or its file system does not on this kernel: %w", name, errdefs.ErrNotImplemented)
	}
	return nil
}
