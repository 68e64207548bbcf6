// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/pins"
	"berth/internal/host/spec"
)

// userNamespaces makes the namespaces of pods that may have a user namespace of their own.
type userNamespaces struct {
	netns NetNS
	can   func(ctx context.Context, handler string) error // nil: no handler can
}

// check refuses a pod that asks for a user namespace which its handler cannot make.
func (n *userNamespaces) check(ctx context.Context, config *runtimeapi.PodSandboxConfig, h Handler) error {
	if _, ok := spec.UserNamespace(config); !ok {
		return nil
	}
	err := fmt.Errorf("this berth does not make any: %w", errdefs.ErrNotImplemented)
	if n.can != nil {
		err = n.can(ctx, h.Name)
	}
	if err != nil {
		return fmt.Errorf("namespace_options.userns_options: runtime handler %s: user namespaces: %w", h.Name, err)
	}
	return nil
}

// createNetNS makes the network namespace of the sandbox u, which the pod's user namespace owns if
// the pod has one.
func (n *userNamespaces) createNetNS(ctx context.Context, u *unit) error {
	if ids, ok := spec.UserNamespace(u.sandbox.Config); ok {
		return n.netns.CreateOwned(ctx, u.sandbox.NetNS, pins.UserIDs(ids))
	}
	return n.netns.Create(ctx, u.sandbox.NetNS)
}

// owner is the user namespace that the process of a sandbox joins.
type owner struct {
	file *os.File // nil: none
	path string   // "" for a new one, or for the host's
}

// ownerOf opens the user namespace of the sandbox u, which its network namespace keeps. It has a
// path for as long as it is open, until the OCI runtime has joined it: from then on the sandbox's
// process is in it.
func (n *userNamespaces) ownerOf(u *unit) (owner, error) {
	if _, ok := spec.UserNamespace(u.sandbox.Config); !ok || u.sandbox.NetNS == "" {
		return owner{}, nil
	}
	f, err := n.netns.Owner(u.sandbox.NetNS)
	if err != nil {
		return owner{}, err
	}
	// runc treats any path that begins with /proc/PID as /proc/PID/ns/user, and would compare the
	// mappings with those of this process. It does not with a dot before it.
	return owner{file: f, path: fmt.Sprintf("/./proc/%d/fd/%d", os.Getpid(), f.Fd())}, nil
}

func (o owner) close() {
	if o.file != nil {
		_ = o.file.Close()
	}
}
