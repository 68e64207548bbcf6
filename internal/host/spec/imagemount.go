// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"path/filepath"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// checkImageMount refuses a mount of an image that CRI does not allow: an image is read-only and
// does not have a host path, and the mounted path lies within the image.
func checkImageMount(m *runtimeapi.Mount) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("mount %s: %s: %w", m.GetContainerPath(), fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
	}
	sub := m.GetImageSubPath()
	switch {
	case m.GetImage() == nil && sub != "":
		return refuse("image_sub_path %q needs an image", sub)
	case m.GetImage() == nil:
		return nil
	case m.GetImage().GetImage() == "":
		return refuse("image: no image is named")
	case m.GetHostPath() != "":
		return refuse("host_path %q cannot be mounted together with an image", m.GetHostPath())
	case !m.GetReadonly():
		return refuse("readonly: an image can only be mounted read-only")
	case m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE:
		return refuse("propagation: an image can only be mounted with private propagation")
	case sub != "" && !filepath.IsLocal(sub):
		return refuse("image_sub_path %q is not a path within the image", sub)
	}
	return nil
}
