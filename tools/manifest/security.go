// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maskedPaths and readonlyPaths are the parts of /proc and /sys that a container that is not
// privileged cannot see, or cannot write. The kubelet sends the same lists.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// security merges the security contexts of the pod and of the container. A setting of the container
// replaces the pod's. field is the path of the container's security context.
func (t *translation) security(field string, c *corev1.Container, p *Container) {
	pod := cmp.Or(t.pod.Spec.SecurityContext, &corev1.PodSecurityContext{})
	own := cmp.Or(c.SecurityContext, &corev1.SecurityContext{})
	user := cmp.Or(own.RunAsUser, pod.RunAsUser)
	group := cmp.Or(own.RunAsGroup, pod.RunAsGroup)
	nonRoot := cmp.Or(own.RunAsNonRoot, pod.RunAsNonRoot)
	profile := cmp.Or(own.SeccompProfile, pod.SeccompProfile)
	t.id(field+".runAsUser", own.RunAsUser)
	t.id(field+".runAsGroup", own.RunAsGroup)
	if user == nil && group != nil {
		t.bad(field+".runAsGroup", "it requires runAsUser")
	}
	is := func(b *bool) bool { return b != nil && *b }
	sc := &runtimeapi.LinuxContainerSecurityContext{
		Privileged:         is(own.Privileged),
		ReadonlyRootfs:     is(own.ReadOnlyRootFilesystem),
		NamespaceOptions:   t.namespaces,
		RunAsUser:          number(user),
		RunAsGroup:         number(group),
		SupplementalGroups: t.groups(),
		SelinuxOptions:     selinuxOptions(cmp.Or(own.SELinuxOptions, pod.SELinuxOptions)),
		Apparmor:           t.apparmor(field, cmp.Or(own.AppArmorProfile, pod.AppArmorProfile)),
		NoNewPrivs:         own.AllowPrivilegeEscalation != nil && !*own.AllowPrivilegeEscalation,
		Seccomp:            t.seccomp(field, profile, is(own.Privileged)),
		Capabilities:       capabilities(own.Capabilities),
	}
	sc.SupplementalGroupsPolicy = t.policy
	if p := own.ProcMount; p != nil && *p != corev1.DefaultProcMount && *p != corev1.UnmaskedProcMount {
		t.bad(field+".procMount", "%q is not Default or Unmasked", *p)
	}
	if !sc.Privileged && (own.ProcMount == nil || *own.ProcMount != corev1.UnmaskedProcMount) {
		sc.MaskedPaths, sc.ReadonlyPaths = slices.Clone(maskedPaths), slices.Clone(readonlyPaths)
	}
	admin := slices.ContainsFunc(sc.GetCapabilities().GetAddCapabilities(), func(k string) bool {
		return slices.Contains([]string{"ALL", "SYS_ADMIN", "CAP_SYS_ADMIN"}, strings.ToUpper(k))
	})
	if sc.NoNewPrivs && (sc.Privileged || admin) {
		t.bad(field+".allowPrivilegeEscalation", "false cannot be combined with privileged or SYS_ADMIN")
	}
	if is(nonRoot) {
		if user != nil && *user == 0 {
			t.bad(field+".runAsNonRoot", "runAsUser is 0")
		}
		p.NonRoot = user == nil
	}
	p.Config.Linux.SecurityContext = sc
}

// groups are the groups that each process of the pod has besides its own: fsGroup is one of them.
func (t *translation) groups() []int64 {
	sc := t.pod.Spec.SecurityContext
	switch {
	case sc == nil:
		return nil
	case sc.FSGroup == nil:
		return sc.SupplementalGroups
	}
	return append(slices.Clone(sc.SupplementalGroups), *sc.FSGroup)
}

// groupsPolicy translates whether the groups of the image's user count as well.
func (t *translation) groupsPolicy(p *corev1.SupplementalGroupsPolicy) runtimeapi.SupplementalGroupsPolicy {
	switch {
	case p == nil || *p == corev1.SupplementalGroupsPolicyMerge:
	case *p == corev1.SupplementalGroupsPolicyStrict:
		return runtimeapi.SupplementalGroupsPolicy_Strict
	default:
		t.bad("spec.securityContext.supplementalGroupsPolicy", "%q is not Merge or Strict", *p)
	}
	return runtimeapi.SupplementalGroupsPolicy_Merge
}

func selinuxOptions(o *corev1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

// apparmor translates the profile. A container without one gets the default of the runtime.
func (t *translation) apparmor(field string, p *corev1.AppArmorProfile) *runtimeapi.SecurityProfile {
	if p == nil {
		return nil
	}
	switch p.Type {
	case corev1.AppArmorProfileTypeRuntimeDefault:
		return runtimeDefault()
	case corev1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	case corev1.AppArmorProfileTypeLocalhost:
		if p.LocalhostProfile == nil || *p.LocalhostProfile == "" {
			t.bad(field+".appArmorProfile.localhostProfile", "it is not the name of a profile")
			return nil
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *p.LocalhostProfile}
	}
	t.bad(field+".appArmorProfile.type", "%q is not RuntimeDefault, Unconfined or Localhost", p.Type)
	return nil
}

func capabilities(k *corev1.Capabilities) *runtimeapi.Capability {
	if k == nil {
		return nil
	}
	out := &runtimeapi.Capability{}
	for _, a := range k.Add {
		out.AddCapabilities = append(out.AddCapabilities, string(a))
	}
	for _, d := range k.Drop {
		out.DropCapabilities = append(out.DropCapabilities, string(d))
	}
	return out
}

// seccomp translates the profile. A container without one gets the runtime's default, unless it is
// privileged.
func (t *translation) seccomp(field string, p *corev1.SeccompProfile, privileged bool) *runtimeapi.SecurityProfile {
	unconfined := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	switch {
	case p == nil && privileged:
		return unconfined
	case p == nil:
		return runtimeDefault()
	}
	switch p.Type {
	case corev1.SeccompProfileTypeRuntimeDefault:
		return runtimeDefault()
	case corev1.SeccompProfileTypeUnconfined:
		return unconfined
	case corev1.SeccompProfileTypeLocalhost:
		if p.LocalhostProfile == nil || !path.IsAbs(*p.LocalhostProfile) || path.Clean(*p.LocalhostProfile) != *p.LocalhostProfile {
			t.bad(field+".seccompProfile.localhostProfile", "it is not the absolute path of a profile")
			return nil
		}
		return &runtimeapi.SecurityProfile{
			ProfileType:  runtimeapi.SecurityProfile_Localhost,
			LocalhostRef: *p.LocalhostProfile,
		}
	}
	t.bad(field+".seccompProfile.type", "%q is not RuntimeDefault, Unconfined or Localhost", p.Type)
	return nil
}

func runtimeDefault() *runtimeapi.SecurityProfile {
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
}
