// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What of /proc and /sys containers do not see, or not write, unless they are privileged: the kubelet sends these lists.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

func (t *translation) container(field string, c *corev1.Container, seen map[string]bool, to *[]PlannedContainer) {
	if !dnsLabel.MatchString(c.Name) || len(c.Name) > 63 {
		t.bad(field+".name", "%q is not lower-case letters, digits and hyphens", c.Name)
		return
	}
	if seen[c.Name] {
		t.bad(field+".name", "%s is there twice", c.Name)
	}
	seen[c.Name] = true
	if c.Image == "" {
		t.bad(field+".image", "it is missing")
	}
	labels := t.podLabels()
	labels[labelContainerName] = c.Name
	p := PlannedContainer{PullPolicy: string(c.ImagePullPolicy), Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: c.Name},
		Image:    &runtimeapi.ImageSpec{Image: c.Image, UserSpecifiedImage: c.Image},
		Labels:   labels, Annotations: map[string]string{annotationRestarts: "0"},
		WorkingDir: c.WorkingDir, LogPath: path.Join(c.Name, "0.log"),
		Tty: c.TTY, Stdin: c.Stdin, StdinOnce: c.StdinOnce,
		Mounts: t.mounts(field, c),
		Linux:  &runtimeapi.LinuxContainerConfig{Resources: t.resources(field, c)},
	}}
	if g := t.pod.Spec.TerminationGracePeriodSeconds; g != nil {
		p.Config.Annotations[annotationGrace] = strconv.FormatInt(*g, 10)
	}
	switch c.ImagePullPolicy {
	case "":
		// Not Always for :latest, as in a cluster: an image that was imported has no registry to ask.
		p.PullPolicy = string(corev1.PullIfNotPresent)
	case corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		t.bad(field+".imagePullPolicy", "%q is not Always, IfNotPresent or Never", c.ImagePullPolicy)
	}
	var vars map[string]string
	p.Config.Envs, vars = t.env(field, c)
	for _, s := range c.Command {
		p.Config.Command = append(p.Config.Command, expand(s, vars))
	}
	for _, s := range c.Args {
		p.Config.Args = append(p.Config.Args, expand(s, vars))
	}
	t.security(field, c, &p)
	*to = append(*to, p)
}

// env is the environment, in order, and by name for references.
func (t *translation) env(field string, c *corev1.Container) ([]*runtimeapi.KeyValue, map[string]string) {
	vars := map[string]string{}
	var out []*runtimeapi.KeyValue
	for i, e := range c.Env {
		field := fmt.Sprintf("%s.env[%d]", field, i)
		if e.Name == "" || strings.ContainsAny(e.Name, "=\x00") {
			t.bad(field+".name", "%q is no name of a variable", e.Name)
		}
		value := expand(e.Value, vars)
		if strings.Contains(e.Value, "\x00") {
			t.bad(field+".value", "it has a zero byte")
		}
		if f := e.ValueFrom; f != nil && f.FieldRef != nil {
			if e.Value != "" {
				t.bad(field, "it has both a value and a valueFrom")
			}
			value = t.field(field+".valueFrom.fieldRef.fieldPath", f.FieldRef.FieldPath)
		}
		vars[e.Name] = value
		if i := slices.IndexFunc(out, func(kv *runtimeapi.KeyValue) bool { return kv.GetKey() == e.Name }); i >= 0 {
			out = slices.Delete(out, i, i+1) // the last one counts
		}
		out = append(out, &runtimeapi.KeyValue{Key: e.Name, Value: []byte(value)})
	}
	return out, vars
}

func (t *translation) field(field, name string) string {
	switch name {
	case "metadata.name":
		return t.pod.Name
	case "metadata.namespace":
		return t.pod.Namespace
	case "metadata.uid":
		return string(t.pod.UID)
	case "status.podIP":
		if t.pod.Spec.HostNetwork && t.o.HostIP == "" {
			t.bad(field, "status.podIP: the pod is in the host's network, and the host's address is not known")
		}
		return podIPMark
	}
	t.bad(field, "%q is not metadata.name, metadata.namespace, metadata.uid or status.podIP", name)
	return ""
}

// expand replaces $(NAME) by the variable of that name; $$ is one $, and a reference to nothing stays as it is. Source:
// the API's documentation of Container.command.
func expand(s string, vars map[string]string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			out.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			out.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(s[i:], ')')
			if end < 0 {
				out.WriteByte('$')
				continue
			}
			if v, ok := vars[s[i+2:i+end]]; ok {
				out.WriteString(v)
			} else {
				out.WriteString(s[i : i+end+1])
			}
			i += end
		default:
			out.WriteByte('$')
		}
	}
	return out.String()
}

func (t *translation) mounts(field string, c *corev1.Container) []*runtimeapi.Mount {
	var out []*runtimeapi.Mount
	seen := map[string]bool{}
	for i, m := range c.VolumeMounts {
		field := fmt.Sprintf("%s.volumeMounts[%d]", field, i)
		at := slices.IndexFunc(t.plan.Volumes, func(v PlannedVolume) bool { return v.Name == m.Name })
		if at < 0 {
			t.bad(field+".name", "there is no volume %q", m.Name)
			continue
		}
		if !path.IsAbs(m.MountPath) || strings.Contains(m.MountPath, ":") {
			t.bad(field+".mountPath", "%q is no absolute path without a colon", m.MountPath)
		}
		if seen[path.Clean(m.MountPath)] {
			t.bad(field+".mountPath", "%s is there twice", m.MountPath)
		}
		seen[path.Clean(m.MountPath)] = true
		mount := &runtimeapi.Mount{HostPath: t.plan.Volumes[at].Path, ContainerPath: m.MountPath, Readonly: m.ReadOnly}
		if p := m.MountPropagation; p != nil {
			switch *p {
			case corev1.MountPropagationNone:
			case corev1.MountPropagationHostToContainer:
				mount.Propagation = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
			case corev1.MountPropagationBidirectional:
				mount.Propagation = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
				if c.SecurityContext == nil || c.SecurityContext.Privileged == nil || !*c.SecurityContext.Privileged {
					t.bad(field+".mountPropagation", "only privileged containers may have Bidirectional")
				}
			default:
				t.bad(field+".mountPropagation", "%q is not None, HostToContainer or Bidirectional", *p)
			}
		}
		out = append(out, mount)
	}
	return out
}

// CPU shares and quota follow the kubelet: 1024 shares are one CPU, two the least; a quota is of 100 ms, 1 ms the least.
const (
	minShares   = 2
	quotaPeriod = 100_000 // µs
	minQuota    = 1_000   // µs
)

func (t *translation) resources(field string, c *corev1.Container) *runtimeapi.LinuxContainerResources {
	for _, of := range []struct {
		name string
		list corev1.ResourceList
	}{{"limits", c.Resources.Limits}, {"requests", c.Resources.Requests}} {
		for _, name := range slices.Sorted(maps.Keys(of.list)) {
			if q := of.list[name]; q.Sign() < 0 {
				t.bad(fmt.Sprintf("%s.resources.%s.%s", field, of.name, name), "%s is negative", q.String())
			}
			limit, limited := c.Resources.Limits[name]
			if q := of.list[name]; limited && q.Cmp(limit) > 0 {
				t.bad(fmt.Sprintf("%s.resources.requests.%s", field, name), "%s is more than the limit, %s", q.String(), limit.String())
			}
		}
	}
	r := &runtimeapi.LinuxContainerResources{CpuShares: minShares}
	cpu := c.Resources.Requests.Cpu().MilliValue()
	if _, ok := c.Resources.Requests[corev1.ResourceCPU]; !ok {
		cpu = c.Resources.Limits.Cpu().MilliValue()
	}
	if cpu > 0 {
		r.CpuShares = min(max(cpu*1024/1000, minShares), 1<<18)
	}
	if limit := c.Resources.Limits.Cpu().MilliValue(); limit > 0 {
		r.CpuPeriod, r.CpuQuota = quotaPeriod, max(limit*quotaPeriod/1000, minQuota)
	}
	r.MemoryLimitInBytes = c.Resources.Limits.Memory().Value()
	if t.bestEffort() {
		r.OomScoreAdj = 1000 // the first to go, as in a cluster. Others keep 0: what they asked for is no share of anything here
	}
	return r
}

// bestEffort: no container of the pod asks for anything.
func (t *translation) bestEffort() bool {
	for _, c := range append(slices.Clone(t.pod.Spec.InitContainers), t.pod.Spec.Containers...) {
		if len(c.Resources.Limits)+len(c.Resources.Requests) > 0 {
			return false
		}
	}
	return true
}

// security merges the pod's context and the container's, whose word counts more.
func (t *translation) security(field string, c *corev1.Container, p *PlannedContainer) {
	pod, own := t.pod.Spec.SecurityContext, c.SecurityContext
	if pod == nil {
		pod = &corev1.PodSecurityContext{}
	}
	if own == nil {
		own = &corev1.SecurityContext{}
	}
	field += ".securityContext"
	user, group, nonRoot, profile := pod.RunAsUser, pod.RunAsGroup, pod.RunAsNonRoot, pod.SeccompProfile
	if own.RunAsUser != nil {
		user = own.RunAsUser
	}
	if own.RunAsGroup != nil {
		group = own.RunAsGroup
	}
	if own.RunAsNonRoot != nil {
		nonRoot = own.RunAsNonRoot
	}
	if own.SeccompProfile != nil {
		profile = own.SeccompProfile
	}
	t.id(field+".runAsUser", own.RunAsUser)
	t.id(field+".runAsGroup", own.RunAsGroup)
	if user == nil && group != nil {
		t.bad(field+".runAsGroup", "it needs runAsUser, too")
	}
	is := func(b *bool) bool { return b != nil && *b }
	sc := &runtimeapi.LinuxContainerSecurityContext{
		Privileged: is(own.Privileged), ReadonlyRootfs: is(own.ReadOnlyRootFilesystem),
		NamespaceOptions: t.ns, RunAsUser: number(user), RunAsGroup: number(group), SupplementalGroups: pod.SupplementalGroups,
		NoNewPrivs: own.AllowPrivilegeEscalation != nil && !*own.AllowPrivilegeEscalation,
		Seccomp:    t.seccomp(field, profile, is(own.Privileged)),
	}
	if !sc.Privileged {
		sc.MaskedPaths, sc.ReadonlyPaths = slices.Clone(maskedPaths), slices.Clone(readonlyPaths)
	}
	if k := own.Capabilities; k != nil {
		sc.Capabilities = &runtimeapi.Capability{}
		for _, a := range k.Add {
			sc.Capabilities.AddCapabilities = append(sc.Capabilities.AddCapabilities, string(a))
		}
		for _, d := range k.Drop {
			sc.Capabilities.DropCapabilities = append(sc.Capabilities.DropCapabilities, string(d))
		}
	}
	admin := slices.ContainsFunc(sc.GetCapabilities().GetAddCapabilities(), func(k string) bool {
		return slices.Contains([]string{"ALL", "SYS_ADMIN", "CAP_SYS_ADMIN"}, strings.ToUpper(k))
	})
	if sc.NoNewPrivs && (sc.Privileged || admin) {
		t.bad(field+".allowPrivilegeEscalation", "false cannot be together with privileged or SYS_ADMIN")
	}
	if is(nonRoot) {
		if user != nil && *user == 0 {
			t.bad(field+".runAsNonRoot", "runAsUser is 0")
		}
		p.NonRoot = user == nil
	}
	p.Config.Linux.SecurityContext = sc
}

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
			t.bad(field+".seccompProfile.localhostProfile", "give the absolute path of a profile")
			return nil
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *p.LocalhostProfile}
	}
	t.bad(field+".seccompProfile.type", "%q is not RuntimeDefault, Unconfined or Localhost", p.Type)
	return nil
}
