// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// queuedUpdate is the change of one version. The record has the sum of all versions, which the next
// berth carries out as one. This berth carries them out one after the other, so that a refused one
// does not make the later ones fail.
type queuedUpdate struct {
	version uint64
	change  *runtimeapi.LinuxContainerResources
}

// maxQueued bounds how many changes of one container are carried out one by one. If there are more,
// all of them are carried out as one.
const maxQueued = 16

// upTo returns a list without the versions after one.
func upTo(list []queuedUpdate, version uint64) []queuedUpdate {
	return slices.DeleteFunc(slices.Clone(list), func(q queuedUpdate) bool { return q.version > version })
}
