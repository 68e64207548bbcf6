// SPDX-License-Identifier: Apache-2.0

package connection

import (
	"context"

	"github.com/containerd/containerd/v2/pkg/namespaces"
)

// Namespace is the containerd namespace of everything that berth makes.
const Namespace = "k8s.io"

// LabelOwner marks objects that this berth made. Its value is the berth's own ID, so that several
// berths can share one containerd.
const LabelOwner = "io.berth.owner"

// OwnSandboxer is the name of the sandbox controller in the sandbox object of a pod that uses none
// of containerd's.
const OwnSandboxer = "berth"

// Namespaced puts the namespace into a context, the only place where in-memory services look for
// it.
func Namespaced(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, Namespace)
}
