// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"
)

// Plan is a pod as CRI takes it.
type Plan struct {
	Name       string
	Handler    string
	Sandbox    *runtimeapi.PodSandboxConfig
	Init       []*runtimeapi.ContainerConfig
	Containers []*runtimeapi.ContainerConfig
	// Dirs are the emptyDir volumes, to be made before anything runs.
	Dirs []string
	// Grace is the seconds that a stop leaves containers.
	Grace int64
	// Ignored names the fields that were left out, when that is allowed.
	Ignored []string
}

// PlayOptions say where things go.
type PlayOptions struct {
	LogDir            string // of all pods; /var/log/pods
	VolumeDir         string // of emptyDir volumes
	UID               types.UID
	IgnoreUnsupported bool
}

// ParsePod reads a v1 Pod strictly: a field that Kubernetes does not know is an error.
func ParsePod(b []byte) (*corev1.Pod, error) {
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict(b, &pod); err != nil {
		return nil, fmt.Errorf("read pod: %w", err)
	}
	if pod.Kind != "Pod" || pod.APIVersion != "v1" {
		return nil, fmt.Errorf("read pod: it is a %s %s, not a v1 Pod", pod.APIVersion, pod.Kind)
	}
	if pod.Name == "" {
		return nil, errors.New("read pod: metadata.name is empty")
	}
	if len(pod.Spec.Containers) == 0 {
		return nil, errors.New("read pod: spec.containers is empty")
	}
	return &pod, nil
}

// translator collects what it cannot honour.
type translator struct {
	pod  *corev1.Pod
	o    PlayOptions
	plan *Plan
	no   []string
}

func (t *translator) cannot(field string, is bool) {
	if is {
		t.no = append(t.no, field)
	}
}

// Translate turns a pod into CRI's configurations. What berth cannot honour is an error that names the fields, or
// in Plan.Ignored when that is allowed.
func Translate(pod *corev1.Pod, o PlayOptions) (*Plan, error) {
	ns := pod.Namespace
	if ns == "" {
		ns = "default"
	}
	if pod.UID != "" {
		o.UID = pod.UID
	}
	s := pod.Spec
	t := &translator{pod: pod, o: o, plan: &Plan{Name: pod.Name, Grace: 30}}
	if s.TerminationGracePeriodSeconds != nil {
		t.plan.Grace = *s.TerminationGracePeriodSeconds
	}
	if s.RuntimeClassName != nil {
		t.plan.Handler = *s.RuntimeClassName
	}
	labels := map[string]string{"io.kubernetes.pod.name": pod.Name, "io.kubernetes.pod.namespace": ns, "io.kubernetes.pod.uid": string(o.UID)}
	for k, v := range pod.Labels {
		labels[k] = v
	}
	hostname := s.Hostname
	if hostname == "" && !s.HostNetwork {
		hostname = pod.Name
	}
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: ns, Uid: string(o.UID)}, Hostname: hostname,
		LogDirectory: filepath.Join(o.LogDir, ns+"_"+pod.Name+"_"+string(o.UID)), Labels: labels, Annotations: pod.Annotations,
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: t.namespaces(),
			Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
		}},
	}
	if d := s.DNSConfig; d != nil {
		cfg.DnsConfig = &runtimeapi.DNSConfig{Servers: d.Nameservers, Searches: d.Searches}
		for _, opt := range d.Options {
			v := opt.Name
			if opt.Value != nil {
				v += ":" + *opt.Value
			}
			cfg.DnsConfig.Options = append(cfg.DnsConfig.Options, v)
		}
	}
	if sec := s.SecurityContext; sec != nil {
		for _, c := range sec.Sysctls {
			if cfg.Linux.Sysctls == nil {
				cfg.Linux.Sysctls = map[string]string{}
			}
			cfg.Linux.Sysctls[c.Name] = c.Value
		}
		t.cannot("spec.securityContext.fsGroup", sec.FSGroup != nil)
		t.cannot("spec.securityContext.seLinuxOptions", sec.SELinuxOptions != nil)
		t.cannot("spec.securityContext.runAsNonRoot", sec.RunAsNonRoot != nil && *sec.RunAsNonRoot)
	}
	t.plan.Sandbox = cfg
	t.cannot("spec.ephemeralContainers", len(s.EphemeralContainers) > 0)
	t.cannot("spec.hostAliases", len(s.HostAliases) > 0)
	t.cannot("spec.affinity", s.Affinity != nil)
	t.cannot("spec.nodeSelector", len(s.NodeSelector) > 0)
	t.cannot("spec.serviceAccountName", s.ServiceAccountName != "")
	t.cannot("spec.imagePullSecrets", len(s.ImagePullSecrets) > 0)
	t.cannot("spec.readinessGates", len(s.ReadinessGates) > 0)
	t.cannot("spec.resourceClaims", len(s.ResourceClaims) > 0)
	t.cannot("spec.overhead", len(s.Overhead) > 0)
	t.cannot("spec.activeDeadlineSeconds", s.ActiveDeadlineSeconds != nil)
	t.cannot("spec.hostUsers", s.HostUsers != nil && !*s.HostUsers)
	t.cannot("spec.subdomain", s.Subdomain != "")
	volumes := t.volumes()
	for i, c := range s.InitContainers {
		field := fmt.Sprintf("spec.initContainers[%d]", i)
		t.cannot(field+".restartPolicy", c.RestartPolicy != nil)
		t.plan.Init = append(t.plan.Init, t.container(field, c, volumes))
	}
	for i, c := range s.Containers {
		t.plan.Containers = append(t.plan.Containers, t.container(fmt.Sprintf("spec.containers[%d]", i), c, volumes))
	}
	for _, c := range append(append([]*runtimeapi.ContainerConfig(nil), t.plan.Init...), t.plan.Containers...) {
		if c.GetLinux().GetSecurityContext().GetPrivileged() {
			cfg.Linux.SecurityContext.Privileged = true
		}
	}
	if len(t.no) > 0 && !o.IgnoreUnsupported {
		return nil, fmt.Errorf("pod %s asks for what play cannot do: %s; take it out, or give --ignore-unsupported", pod.Name, strings.Join(t.no, ", "))
	}
	t.plan.Ignored = t.no
	return t.plan, nil
}

func (t *translator) namespaces() *runtimeapi.NamespaceOption {
	s := t.pod.Spec
	n := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	if s.HostNetwork {
		n.Network = runtimeapi.NamespaceMode_NODE
	}
	if s.HostIPC {
		n.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case s.HostPID:
		n.Pid = runtimeapi.NamespaceMode_NODE
	case s.ShareProcessNamespace != nil && *s.ShareProcessNamespace:
		n.Pid = runtimeapi.NamespaceMode_POD
	}
	return n
}

// volumes are host paths by volume name.
func (t *translator) volumes() map[string]string {
	out := map[string]string{}
	for i, v := range t.pod.Spec.Volumes {
		switch {
		case v.EmptyDir != nil:
			dir := filepath.Join(t.o.VolumeDir, string(t.o.UID), v.Name)
			out[v.Name] = dir
			t.plan.Dirs = append(t.plan.Dirs, dir)
			t.cannot(fmt.Sprintf("spec.volumes[%d].emptyDir.medium", i), v.EmptyDir.Medium != "")
			t.cannot(fmt.Sprintf("spec.volumes[%d].emptyDir.sizeLimit", i), v.EmptyDir.SizeLimit != nil)
		case v.HostPath != nil:
			out[v.Name] = v.HostPath.Path
		default:
			t.cannot(fmt.Sprintf("spec.volumes[%d] (%s)", i, v.Name), true)
		}
	}
	return out
}

func (t *translator) container(field string, c corev1.Container, volumes map[string]string) *runtimeapi.ContainerConfig {
	out := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: c.Name}, Image: &runtimeapi.ImageSpec{Image: c.Image, UserSpecifiedImage: c.Image},
		Command: c.Command, Args: c.Args, WorkingDir: c.WorkingDir, Stdin: c.Stdin, StdinOnce: c.StdinOnce, Tty: c.TTY,
		LogPath: filepath.Join(c.Name, "0.log"),
		Labels: map[string]string{
			"io.kubernetes.container.name": c.Name, "io.kubernetes.pod.name": t.pod.Name,
			"io.kubernetes.pod.namespace": t.plan.Sandbox.GetMetadata().GetNamespace(), "io.kubernetes.pod.uid": string(t.o.UID),
		},
		Linux: &runtimeapi.LinuxContainerConfig{Resources: resources(c.Resources), SecurityContext: t.security(field, c)},
	}
	for i, e := range c.Env {
		f := fmt.Sprintf("%s.env[%d]", field, i)
		v := e.Value
		if e.ValueFrom != nil {
			var ok bool
			if v, ok = t.fieldRef(e.ValueFrom.FieldRef); !ok {
				t.cannot(f+".valueFrom", true)
				continue
			}
		}
		out.Envs = append(out.Envs, &runtimeapi.KeyValue{Key: e.Name, Value: []byte(v)})
	}
	for i, m := range c.VolumeMounts {
		f := fmt.Sprintf("%s.volumeMounts[%d]", field, i)
		host, ok := volumes[m.Name]
		if !ok || m.SubPath != "" || m.SubPathExpr != "" {
			t.cannot(f, true)
			continue
		}
		out.Mounts = append(out.Mounts, &runtimeapi.Mount{ContainerPath: m.MountPath, HostPath: host, Readonly: m.ReadOnly, Propagation: propagation(m.MountPropagation)})
	}
	for _, p := range c.Ports {
		if p.HostPort == 0 {
			continue
		}
		t.plan.Sandbox.PortMappings = append(t.plan.Sandbox.PortMappings, &runtimeapi.PortMapping{
			Protocol:      runtimeapi.Protocol(runtimeapi.Protocol_value[strings.ToUpper(string(p.Protocol))]),
			ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP,
		})
	}
	t.cannot(field+".envFrom", len(c.EnvFrom) > 0)
	t.cannot(field+".livenessProbe", c.LivenessProbe != nil)
	t.cannot(field+".readinessProbe", c.ReadinessProbe != nil)
	t.cannot(field+".startupProbe", c.StartupProbe != nil)
	t.cannot(field+".lifecycle", c.Lifecycle != nil)
	t.cannot(field+".volumeDevices", len(c.VolumeDevices) > 0)
	return out
}

func (t *translator) fieldRef(r *corev1.ObjectFieldSelector) (string, bool) {
	if r == nil {
		return "", false
	}
	switch r.FieldPath {
	case "metadata.name":
		return t.pod.Name, true
	case "metadata.namespace":
		return t.plan.Sandbox.GetMetadata().GetNamespace(), true
	case "metadata.uid":
		return string(t.o.UID), true
	}
	return "", false
}

func propagation(m *corev1.MountPropagationMode) runtimeapi.MountPropagation {
	if m == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
	}
	switch *m {
	case corev1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	case corev1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	}
	return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
}

// resources as the kubelet computes them: 1024 shares and 100 ms a CPU.
func resources(r corev1.ResourceRequirements) *runtimeapi.LinuxContainerResources {
	const period = 100_000 // microseconds
	out := &runtimeapi.LinuxContainerResources{CpuShares: 2}
	cpu, ok := r.Requests[corev1.ResourceCPU]
	if !ok {
		cpu, ok = r.Limits[corev1.ResourceCPU]
	}
	if ok {
		out.CpuShares = max(2, cpu.MilliValue()*1024/1000)
	}
	if limit, ok := r.Limits[corev1.ResourceCPU]; ok {
		out.CpuPeriod, out.CpuQuota = period, max(1000, limit.MilliValue()*period/1000)
	}
	if limit, ok := r.Limits[corev1.ResourceMemory]; ok {
		out.MemoryLimitInBytes = limit.Value()
	}
	return out
}

// security is what the kubelet sends: masked and read-only paths included.
func (t *translator) security(field string, c corev1.Container) *runtimeapi.LinuxContainerSecurityContext {
	out := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: t.namespaces(), Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined},
		MaskedPaths: []string{
			"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
			"/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
		},
		ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
	}
	out.Seccomp.ProfileType = runtimeapi.SecurityProfile_RuntimeDefault
	value := func(v *int64) *runtimeapi.Int64Value {
		if v == nil {
			return nil
		}
		return &runtimeapi.Int64Value{Value: *v}
	}
	if p := t.pod.Spec.SecurityContext; p != nil {
		out.RunAsUser, out.RunAsGroup, out.SupplementalGroups = value(p.RunAsUser), value(p.RunAsGroup), p.SupplementalGroups
		t.seccomp("spec.securityContext.seccompProfile", out, p.SeccompProfile)
	}
	s := c.SecurityContext
	if s == nil {
		return out
	}
	if s.RunAsUser != nil {
		out.RunAsUser = value(s.RunAsUser)
	}
	if s.RunAsGroup != nil {
		out.RunAsGroup = value(s.RunAsGroup)
	}
	out.Privileged = s.Privileged != nil && *s.Privileged
	out.ReadonlyRootfs = s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem
	out.NoNewPrivs = s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation
	if s.Capabilities != nil {
		out.Capabilities = &runtimeapi.Capability{}
		for _, a := range s.Capabilities.Add {
			out.Capabilities.AddCapabilities = append(out.Capabilities.AddCapabilities, string(a))
		}
		for _, d := range s.Capabilities.Drop {
			out.Capabilities.DropCapabilities = append(out.Capabilities.DropCapabilities, string(d))
		}
	}
	t.seccomp(field+".securityContext.seccompProfile", out, s.SeccompProfile)
	t.cannot(field+".securityContext.runAsNonRoot", s.RunAsNonRoot != nil && *s.RunAsNonRoot)
	t.cannot(field+".securityContext.seLinuxOptions", s.SELinuxOptions != nil)
	t.cannot(field+".securityContext.procMount", s.ProcMount != nil)
	return out
}

func (t *translator) seccomp(field string, out *runtimeapi.LinuxContainerSecurityContext, p *corev1.SeccompProfile) {
	if p == nil {
		return
	}
	switch p.Type {
	case corev1.SeccompProfileTypeUnconfined:
		out.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	case corev1.SeccompProfileTypeLocalhost:
		if p.LocalhostProfile == nil || !filepath.IsAbs(*p.LocalhostProfile) {
			t.cannot(field, true)
			return
		}
		out.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *p.LocalhostProfile}
	}
}
