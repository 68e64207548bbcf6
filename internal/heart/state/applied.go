// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Applied holds the values a container was made with, from its OCI specification. They may differ
// from the request: the image names the user, plug-ins change the specification, and the host lacks
// a controller. It is recorded with the creation, so that a status does not depend on containerd.
type Applied struct {
	User      *runtimeapi.LinuxContainerUser
	Resources *runtimeapi.LinuxContainerResources
}

// GetUID returns the user of the container's process in its user namespace; 0 if it is not known.
func (a *Applied) GetUID() int64 {
	if a == nil {
		return 0
	}
	return a.User.GetUid()
}

// appliedOnDisk holds the messages as protobuf, so that a field of a later CRI is kept.
type appliedOnDisk struct {
	User      []byte `json:"user,omitempty"`
	Resources []byte `json:"resources,omitempty"`
}

// MarshalJSON encodes the messages as protobuf.
func (a Applied) MarshalJSON() ([]byte, error) {
	var d appliedOnDisk
	var err error
	if a.User != nil {
		if d.User, err = proto.Marshal(a.User); err != nil {
			return nil, fmt.Errorf("encode user: %w", err)
		}
	}
	if a.Resources != nil {
		if d.Resources, err = proto.Marshal(a.Resources); err != nil {
			return nil, fmt.Errorf("encode resources: %w", err)
		}
	}
	return json.Marshal(d)
}

// UnmarshalJSON decodes the output of MarshalJSON.
func (a *Applied) UnmarshalJSON(b []byte) error {
	var d appliedOnDisk
	if err := json.Unmarshal(b, &d); err != nil {
		return err
	}
	*a = Applied{}
	if d.User != nil {
		a.User = &runtimeapi.LinuxContainerUser{}
		if err := proto.Unmarshal(d.User, a.User); err != nil {
			return fmt.Errorf("decode user: %w", err)
		}
	}
	if d.Resources != nil {
		a.Resources = &runtimeapi.LinuxContainerResources{}
		if err := proto.Unmarshal(d.Resources, a.Resources); err != nil {
			return fmt.Errorf("decode resources: %w", err)
		}
	}
	return nil
}
