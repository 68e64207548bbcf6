// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/cri138"
)

// confine applies seccomp, AppArmor and SELinux to a container. Each is applied as the request
// asks, or refused with the name of the field. A privileged container has none of them (CRI,
// LinuxContainerSecurityContext.privileged), but for an AppArmor profile that the request names:
// containerd applies it as well. SELinux comes last: once it has allocated a label, nothing fails
// any more.
func confine(h Host, s *specs.Spec, in Container) ([]Degraded, error) {
	sec := in.Config.GetLinux().GetSecurityContext()
	//nolint:staticcheck // deprecated, and sent by older kubelets
	appArmor, err := profile("apparmor", sec.GetApparmor(), "apparmor_profile", sec.GetApparmorProfile())
	if err != nil {
		return nil, err
	}
	profiles := in.Profiles
	profiles.Default = in.Defaults.SeccompRuntime
	if sec.GetPrivileged() {
		if err := applySeccomp(h, s, seccompOf(in.Defaults.SeccompPrivileged), profiles); err != nil {
			return nil, err
		}
		if appArmor.GetProfileType() == runtimeapi.SecurityProfile_Localhost {
			if err := applyAppArmor(h, s, appArmor); err != nil {
				return nil, err
			}
		}
		return nil, applySELinux(h, s, []string{"disable"})
	}
	//nolint:staticcheck // as above
	p, err := profile("seccomp", sec.GetSeccomp(), "seccomp_profile_path", sec.GetSeccompProfilePath())
	if err != nil {
		return nil, err
	}
	if err := applySeccomp(h, s, p, profiles); err != nil {
		return nil, err
	}
	if own := in.Defaults.AppArmor; own != "" && h.AppArmorDefault != "" &&
		(appArmor == nil || appArmor.GetProfileType() == runtimeapi.SecurityProfile_RuntimeDefault) {
		appArmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: own}
	}
	if sec.GetApparmor() == nil && appArmor.GetProfileType() == runtimeapi.SecurityProfile_RuntimeDefault {
		appArmor = nil // CRI: for apparmor_profile runtime/default is the same as no profile
	}
	if appArmor == nil {
		err = applyDefaultAppArmor(h, s)
	} else {
		err = applyAppArmor(h, s, appArmor)
	}
	if err != nil {
		return nil, err
	}
	return seLinux(h, s, sec.GetSelinuxOptions(), in.SandboxLabel)
}

// profile returns the requested profile, nil for none. It comes from field p, or, from a kubelet
// that does not know the field yet, from the deprecated string.
func profile(field string, p *runtimeapi.SecurityProfile, deprecated, old string) (*runtimeapi.SecurityProfile, error) {
	if p == nil {
		path, local := strings.CutPrefix(old, "localhost/")
		switch {
		case old == "":
			return nil, nil
		case old == "runtime/default" || old == "docker/default":
			return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
		case old == "unconfined":
			return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
		case !local || path == "":
			return nil, fmt.Errorf("%s: %q is not runtime/default, unconfined or localhost/PROFILE: %w", deprecated, old, errdefs.ErrInvalidArgument)
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: path}, nil
	}
	fields, err := cri138.Of[cri138.SecurityProfile](p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", field, err, errdefs.ErrInvalidArgument)
	}
	oci := p.GetProfileType() == cri138.SecurityProfile_OCI
	base := fields.GetBaseProfile()
	switch local := base.GetType() == cri138.SecurityProfileBase_Localhost; {
	case oci && field != "seccomp":
		return nil, fmt.Errorf("%s.profile_type: profiles from a registry (OCI) are for seccomp alone: %w", field, errdefs.ErrInvalidArgument)
	case oci && fields.GetOciRef() == "":
		return nil, fmt.Errorf("%s.oci_ref: OCI needs the reference of a profile: %w", field, errdefs.ErrInvalidArgument)
	case cri138.SecurityProfileBase_BaseType_name[int32(base.GetType())] == "":
		return nil, fmt.Errorf("%s.base_profile.type: %d is not known: %w", field, base.GetType(), errdefs.ErrInvalidArgument)
	case oci && local && base.GetLocalhostRef() == "":
		return nil, fmt.Errorf("%s.base_profile.localhost_ref: Localhost needs the name of a profile: %w", field, errdefs.ErrInvalidArgument)
	case oci && !local && base.GetLocalhostRef() != "":
		return nil, fmt.Errorf("%s.base_profile.localhost_ref: profile %q is not for type %s: %w", field, base.GetLocalhostRef(), base.GetType(), errdefs.ErrInvalidArgument)
	case oci && p.GetLocalhostRef() != "":
		return nil, fmt.Errorf("%s.localhost_ref: profile %q is not for type OCI: %w", field, p.GetLocalhostRef(), errdefs.ErrInvalidArgument)
	case oci:
		return p, nil
	case fields.GetOciRef() != "":
		return nil, fmt.Errorf("%s.oci_ref: profile %q is not for type %s: %w", field, fields.GetOciRef(), p.GetProfileType(), errdefs.ErrInvalidArgument)
	case fields.GetBaseProfile() != nil:
		return nil, fmt.Errorf("%s.base_profile: it is not for type %s: %w", field, p.GetProfileType(), errdefs.ErrInvalidArgument)
	}
	switch local := p.GetProfileType() == runtimeapi.SecurityProfile_Localhost; {
	case runtimeapi.SecurityProfile_ProfileType_name[int32(p.GetProfileType())] == "":
		return nil, fmt.Errorf("%s.profile_type: %d is not known: %w", field, p.GetProfileType(), errdefs.ErrInvalidArgument)
	case local && p.GetLocalhostRef() == "":
		return nil, fmt.Errorf("%s.localhost_ref: Localhost needs the name of a profile: %w", field, errdefs.ErrInvalidArgument)
	case !local && p.GetLocalhostRef() != "":
		return nil, fmt.Errorf("%s.localhost_ref: profile %q is not for type %s: %w", field, p.GetLocalhostRef(), p.GetProfileType(), errdefs.ErrInvalidArgument)
	}
	return p, nil
}

// Profiles loads seccomp profiles.
type Profiles struct {
	// Local loads a Localhost profile; see [ParseSeccomp].
	Local func(path string) (*specs.LinuxSeccomp, error)
	// Pulled loads a profile that was pulled from a registry. If it is not here, the error names it:
	// it is never pulled for a container.
	Pulled func(ref string) (*specs.LinuxSeccomp, error)
	// Default is the path of the profile that RuntimeDefault stands for; "" for the built-in one.
	Default string
	// Foreign is set if the kernel of this host does not see the system calls of the container.
	Foreign bool
}

// applySeccomp applies a profile. No profile at all means unconfined: the kubelet sends
// RuntimeDefault when it means it.
func applySeccomp(h Host, s *specs.Spec, p *runtimeapi.SecurityProfile, profiles Profiles) error {
	load := profiles.Local
	if p == nil || p.GetProfileType() == runtimeapi.SecurityProfile_Unconfined {
		return nil
	}
	if !h.Seccomp {
		return fmt.Errorf("seccomp: profile %s cannot be applied: this kernel has no seccomp: %w", nameOf(p), errdefs.ErrFailedPrecondition)
	}
	if p.GetProfileType() == runtimeapi.SecurityProfile_RuntimeDefault {
		own, err := defaultSeccomp(h, s, profiles)
		s.Linux.Seccomp = own
		return err
	}
	if p.GetProfileType() == cri138.SecurityProfile_OCI {
		return applyPulled(h, s, p, profiles)
	}
	if load == nil {
		return fmt.Errorf("seccomp: profile %s cannot be loaded: %w", p.GetLocalhostRef(), errdefs.ErrFailedPrecondition)
	}
	loaded, err := loadLocal(h, p.GetLocalhostRef(), load)
	if err == nil {
		s.Linux.Seccomp = loaded
	}
	return err
}

func loadLocal(h Host, path string, load func(path string) (*specs.LinuxSeccomp, error)) (*specs.LinuxSeccomp, error) {
	loaded, err := load(path)
	if err != nil {
		return nil, fmt.Errorf("seccomp: load profile %s: %w", path, err)
	}
	if err := checkDenied(h, loaded); err != nil {
		return nil, fmt.Errorf("seccomp: profile %s: %w", path, err)
	}
	return loaded, nil
}

// defaultSeccomp returns the profile that RuntimeDefault stands for.
func defaultSeccomp(h Host, s *specs.Spec, profiles Profiles) (*specs.LinuxSeccomp, error) {
	if profiles.Default != "" {
		return loadLocal(h, profiles.Default, profiles.Local)
	}
	out := seccomp.DefaultProfile(s)
	out.Architectures = architectures(runtime.GOARCH)
	return out, nil
}

// applyPulled applies a profile from a registry together with its base, which is the default
// profile or one of the host's: a call is permitted only if both permit it (KEP-6061). The filter
// of the result is proved against those of both. There is no way without a proof.
func applyPulled(h Host, s *specs.Spec, p *runtimeapi.SecurityProfile, profiles Profiles) error {
	fields, err := cri138.Of[cri138.SecurityProfile](p)
	if err != nil {
		return fmt.Errorf("seccomp: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	ref := fields.GetOciRef()
	switch {
	case profiles.Foreign:
		return fmt.Errorf("seccomp: profile %s: the runtime handler runs containers on a kernel of their own, which does not apply it: %w", ref, errdefs.ErrFailedPrecondition)
	case profiles.Pulled == nil || profiles.Local == nil || h.ProveSeccomp == nil:
		return fmt.Errorf("seccomp: profile %s cannot be applied: profiles from a registry are not supported here: %w", ref, errdefs.ErrFailedPrecondition)
	}
	var base *specs.LinuxSeccomp
	if at := fields.GetBaseProfile().GetLocalhostRef(); at != "" {
		base, err = loadLocal(h, at, profiles.Local)
	} else {
		base, err = defaultSeccomp(h, s, profiles)
	}
	if err != nil {
		return fmt.Errorf("base_profile: %w", err)
	}
	own, err := profiles.Pulled(ref)
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	if err := checkDenied(h, own); err != nil {
		return fmt.Errorf("seccomp: profile %s: %w", ref, err)
	}
	variants, err := Intersect(base, own, runtime.GOARCH)
	if err != nil {
		return fmt.Errorf("seccomp: profile %s cannot be combined with its base exactly: %w", ref, err)
	}
	for _, both := range variants {
		if err = h.ProveSeccomp(base, own, both); err == nil {
			s.Linux.Seccomp = both
			return nil
		}
	}
	return fmt.Errorf("seccomp: profile %s cannot be combined with its base exactly: %w: %w", ref, err, errdefs.ErrFailedPrecondition)
}

// checkDenied refuses a profile that allows system calls by default and has a rule for one that the
// OCI runtime does not know by name, as with a libseccomp that is older than the system call: the
// runtime drops the rule silently, and so allows a call that the profile denies. It cannot be told
// the number instead. If a profile denies system calls by default, an unknown name changes nothing.
func checkDenied(h Host, s *specs.LinuxSeccomp) error {
	lets := func(a specs.LinuxSeccompAction) bool { return a == specs.ActAllow || a == specs.ActLog }
	if h.UnknownSyscalls == nil || !lets(s.DefaultAction) {
		return nil
	}
	var denied []string
	for _, r := range s.Syscalls {
		if !lets(r.Action) {
			denied = append(denied, r.Names...)
		}
	}
	if len(denied) == 0 {
		return nil
	}
	unknown, err := h.UnknownSyscalls(denied)
	if err != nil {
		return fmt.Errorf("find out whether all that it denies is known: %w: %w", err, errdefs.ErrUnavailable)
	}
	if len(unknown) > 0 {
		return fmt.Errorf("it denies %s, which the OCI runtime's libseccomp does not know and would let through; "+
			"leave it out, or write a profile that allows by name: %w", strings.Join(unknown, ", "), errdefs.ErrFailedPrecondition)
	}
	return nil
}

// applyAppArmor applies a profile that the request names.
func applyAppArmor(h Host, s *specs.Spec, p *runtimeapi.SecurityProfile) error {
	if p.GetProfileType() == runtimeapi.SecurityProfile_Unconfined {
		return nil
	}
	if h.AppArmorDefault == "" {
		return fmt.Errorf("apparmor: profile %s cannot be applied: this host has no AppArmor: %w",
			nameOf(p), errdefs.ErrFailedPrecondition)
	}
	if p.GetProfileType() != runtimeapi.SecurityProfile_Localhost {
		return applyDefaultAppArmor(h, s)
	}
	name := strings.TrimPrefix(p.GetLocalhostRef(), "localhost/")
	s.Process.ApparmorProfile = name
	switch loaded, err := h.AppArmorLoaded(name); {
	case err != nil:
		return fmt.Errorf("apparmor: profile %s: %w", name, err)
	case !loaded:
		return fmt.Errorf("apparmor: profile %s is not loaded on this node: %w", name, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// applyDefaultAppArmor applies the default profile where the host has AppArmor. A profile that
// cannot be loaded is an error: the container would run unconfined without having requested it.
func applyDefaultAppArmor(h Host, s *specs.Spec) error {
	if h.AppArmorDefault != "" && h.LoadAppArmor != nil {
		if err := h.LoadAppArmor(); err != nil {
			return fmt.Errorf("apparmor: the default profile cannot be loaded, and the container would run unconfined; install apparmor_parser, or ask for profile type Unconfined: %w: %w",
				err, errdefs.ErrFailedPrecondition)
		}
	}
	s.Process.ApparmorProfile = h.AppArmorDefault
	return nil
}

// PulledProfile returns the reference of the seccomp profile that is asked for, if it is one from a
// registry.
func PulledProfile(p *runtimeapi.SecurityProfile) string {
	if p.GetProfileType() != cri138.SecurityProfile_OCI {
		return ""
	}
	fields, err := cri138.Of[cri138.SecurityProfile](p)
	if err != nil {
		return "" // which is refused elsewhere
	}
	return fields.GetOciRef()
}

func nameOf(p *runtimeapi.SecurityProfile) string {
	if p.GetProfileType() == runtimeapi.SecurityProfile_Localhost {
		return p.GetLocalhostRef()
	}
	if ref := PulledProfile(p); ref != "" {
		return ref
	}
	return p.GetProfileType().String()
}
