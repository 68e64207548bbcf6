// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// confine applies seccomp, AppArmor and SELinux.
func confine(h Host, s *specs.Spec, in Container) error {
	sec := in.Config.GetLinux().GetSecurityContext()
	p := profile(sec.GetSeccomp(), sec.GetPrivileged())
	if p.GetProfileType() == runtimeapi.SecurityProfile_Localhost && p != nil {
		if in.Seccomp == nil {
			return fmt.Errorf("seccomp profile %s cannot be loaded: %w", p.GetLocalhostRef(), errdefs.ErrInvalidArgument)
		}
		loaded, err := in.Seccomp(p.GetLocalhostRef())
		if err != nil {
			return fmt.Errorf("load seccomp profile %s: %w", p.GetLocalhostRef(), err)
		}
		if !h.Seccomp {
			return fmt.Errorf("seccomp profile %s: this kernel has no seccomp: %w", p.GetLocalhostRef(), errdefs.ErrInvalidArgument)
		}
		s.Linux.Seccomp = loaded
	} else if err := applySeccomp(h, s, p); err != nil {
		return err
	}
	if !sec.GetPrivileged() {
		if err := applyAppArmor(h, s, sec.GetApparmor()); err != nil {
			return err
		}
		applySELinux(s, sec.GetSelinuxOptions())
	}
	return nil
}

// applySeccomp applies the default profile where it is asked for. No profile at all means unconfined: the
// kubelet says RuntimeDefault when it means it.
func applySeccomp(h Host, s *specs.Spec, p *runtimeapi.SecurityProfile) error {
	if p == nil || p.GetProfileType() != runtimeapi.SecurityProfile_RuntimeDefault {
		return nil
	}
	if !h.Seccomp {
		return nil
	}
	s.Linux.Seccomp = seccomp.DefaultProfile(s)
	return nil
}

func applyAppArmor(h Host, s *specs.Spec, p *runtimeapi.SecurityProfile) error {
	switch {
	case p == nil || p.GetProfileType() == runtimeapi.SecurityProfile_RuntimeDefault:
		s.Process.ApparmorProfile = h.AppArmorDefault
	case p.GetProfileType() == runtimeapi.SecurityProfile_Localhost:
		if h.AppArmorDefault == "" {
			return fmt.Errorf("AppArmor profile %q: this host has no AppArmor: %w", p.GetLocalhostRef(), errdefs.ErrInvalidArgument)
		}
		s.Process.ApparmorProfile = strings.TrimPrefix(p.GetLocalhostRef(), "localhost/")
	}
	return nil
}

func applySELinux(s *specs.Spec, o *runtimeapi.SELinuxOption) {
	if o == nil || o.GetType() == "" || o.GetUser() == "" || o.GetRole() == "" {
		return
	}
	label := strings.Join([]string{o.GetUser(), o.GetRole(), o.GetType(), o.GetLevel()}, ":")
	s.Process.SelinuxLabel = strings.TrimSuffix(label, ":")
	s.Linux.MountLabel = strings.TrimSuffix(strings.Join([]string{o.GetUser(), "object_r", "container_file_t", o.GetLevel()}, ":"), ":")
}
