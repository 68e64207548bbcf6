// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/spec"
	"berth/internal/state"
)

// appliedOf is what the record of a container says of its specification, hooks included.
func appliedOf(oci *specs.Spec) *state.Applied {
	return &state.Applied{User: spec.UserOf(oci), Resources: spec.ResourcesOf(oci)}
}

// userOf is the user in the status of a container. It is nil for a container that an earlier berth
// made, which did not record it.
func userOf(st *state.Status) *runtimeapi.ContainerUser {
	if st.Applied == nil || st.Applied.User == nil {
		return nil
	}
	return &runtimeapi.ContainerUser{Linux: st.Applied.User}
}

// namespacesOf is the namespaces in the status of a sandbox. What was left out of the request is
// reported as what it means: a mode of POD, and the user namespace of the host.
func namespacesOf(u *unit) *runtimeapi.Namespace {
	asked := u.podNamespaces()
	if asked.GetUsernsOptions() != nil {
		return &runtimeapi.Namespace{Options: asked}
	}
	has := &runtimeapi.NamespaceOption{}
	if asked != nil {
		has = proto.CloneOf(asked)
	}
	has.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}
	return &runtimeapi.Namespace{Options: has}
}
