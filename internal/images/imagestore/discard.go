// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
)

// keeping returns the option that decides which blobs of an image that is pulled containerd keeps.
// Without it these are all. Where blobs are discarded, the manifest does not refer to the layers,
// so that containerd collects them once the lease of the pull has ended.
func (i *Store) keeping() []containerd.RemoteOpt {
	if !i.discards.Load() {
		return nil
	}
	return []containerd.RemoteOpt{containerd.WithChildLabelMap(images.ChildGCLabelsFilterLayers)}
}
