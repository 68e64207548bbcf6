// SPDX-License-Identifier: Apache-2.0

package node

import (
	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/types/known/anypb"
)

// MakeForeign makes a container object in containerd as `ctr` and nerdctl do: it has nothing of a
// CRI.
func (n *Node) MakeForeign(id string) {
	n.t.Helper()
	ctx, conn, err := n.dialContainerd(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	defer conn.Close()
	_, err = containersapi.NewContainersClient(conn).Create(ctx, &containersapi.CreateContainerRequest{Container: &containersapi.Container{
		ID:      id,
		Labels:  map[string]string{"made-by": "another client"},
		Runtime: &containersapi.Container_Runtime{Name: "io.containerd.runc.v2"},
		Spec:    &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Spec", Value: []byte("{}")},
	}})
	if err != nil {
		n.t.Fatal(err)
	}
}

// Foreign returns all that containerd has of a container object.
func (n *Node) Foreign(id string) string {
	n.t.Helper()
	ctx, conn, err := n.dialContainerd(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	defer conn.Close()
	resp, err := containersapi.NewContainersClient(conn).Get(ctx, &containersapi.GetContainerRequest{ID: id})
	if err != nil {
		n.t.Fatal(err)
	}
	return prototext.Format(resp.GetContainer())
}

// RemoveForeign removes a container object from containerd.
func (n *Node) RemoveForeign(id string) {
	n.t.Helper()
	ctx, conn, err := n.dialContainerd(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := containersapi.NewContainersClient(conn).Delete(ctx, &containersapi.DeleteContainerRequest{ID: id}); err != nil {
		n.t.Error(err)
	}
}
