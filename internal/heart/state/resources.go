// SPDX-License-Identifier: Apache-2.0

package state

import (
	"google.golang.org/protobuf/encoding/protojson"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Resources holds the changes of a container's resources by updates. A container that was never
// updated has the resources of its configuration. A value is never changed.
type Resources struct {
	// Version counts the updates on record. The newest one has this number.
	Version uint64 `json:"version"`
	// Wanted is all that the container is to have since the newest update, while that is not known
	// to be in effect. It is nil once it is, or once the update was refused.
	Wanted *Limits `json:"wanted,omitempty"`
	// Applied holds the values known to be in effect. It is nil as long as no update was.
	Applied *Limits `json:"applied,omitempty"`
}

// PodResources holds the kubelet's values for the resources of a pod, whose cgroup is the kubelet's
// own. A value is never changed.
type PodResources struct {
	Overhead *Limits `json:"overhead,omitempty"`
	// Resources is the sum over the containers of the pod.
	Resources *Limits `json:"resources,omitempty"`
}

// Limits are resources as CRI names them. The message is never changed.
type Limits struct {
	Linux *runtimeapi.LinuxContainerResources
}

// MarshalJSON writes the fields by their names, so that a record can be read without this source.
func (l Limits) MarshalJSON() ([]byte, error) { return protojson.Marshal(l.Linux) }

// UnmarshalJSON reads the fields by their names. It passes over a field that this berth does not
// know, which a newer one wrote: the container has it all the same.
func (l *Limits) UnmarshalJSON(b []byte) error {
	l.Linux = &runtimeapi.LinuxContainerResources{}
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, l.Linux)
}
