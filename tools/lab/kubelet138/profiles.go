// SPDX-License-Identifier: Apache-2.0

// This file is compiled into the kubelet's package kuberuntime. The kubelet of 1.38.0-beta.0 has
// the field of a pod's seccomp profile from a registry and the calls of CRI for it, and refuses
// such a pod: the part between them is not in it (kubernetes/kubernetes#142515). lab.mk adds the
// lines that call these functions, and those that pass on the runtime's feature. Delete them with
// the first version that has that part.
package kuberuntime

import (
	"context"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pulledProfile translates a profile from a registry to CRI.
func pulledProfile(p *v1.SecurityProfileOCI, root string) *runtimeapi.SecurityProfile {
	out := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_OCI, OciRef: p.Ref}
	if base := p.BaseProfile; base != nil && base.Type == v1.SecurityProfileOCIBaseTypeLocalhost {
		out.BaseProfile = &runtimeapi.SecurityProfileBase{
			Type:         runtimeapi.SecurityProfileBase_Localhost,
			LocalhostRef: filepath.Join(root, *base.LocalhostProfile),
		}
	}
	return out
}

// pullProfile lets the runtime pull the profile of a container that will be created.
func (m *kubeGenericRuntimeManager) pullProfile(ctx context.Context, c *runtimeapi.ContainerConfig, pod *runtimeapi.PodSandboxConfig) error {
	p := c.GetLinux().GetSecurityContext().GetSeccomp()
	if p.GetProfileType() != runtimeapi.SecurityProfile_OCI {
		return nil
	}
	image := &runtimeapi.ImageSpec{Image: p.OciRef, UserSpecifiedImage: p.OciRef}
	_, err := m.imageService.PullSecurityProfile(ctx, image, nil, pod, runtimeapi.SecurityProfileKind_Seccomp)
	return err
}
