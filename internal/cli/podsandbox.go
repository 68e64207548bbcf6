// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What the kubelet labels pods and containers with; node agents read it.
const (
	labelPodName       = "io.kubernetes.pod.name"
	labelPodNamespace  = "io.kubernetes.pod.namespace"
	labelPodUID        = "io.kubernetes.pod.uid"
	labelContainerName = "io.kubernetes.container.name"

	annotationGrace    = "io.kubernetes.pod.terminationGracePeriod" // seconds
	annotationRestarts = "io.kubernetes.container.restartCount"
)

func (t *translation) podLabels() map[string]string {
	m := t.pod.ObjectMeta
	return map[string]string{labelPodName: m.Name, labelPodNamespace: m.Namespace, labelPodUID: string(m.UID)}
}

func (t *translation) sandbox() {
	m, s := t.pod.ObjectMeta, t.pod.Spec
	labels := maps.Clone(m.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, t.podLabels())
	for k := range m.Labels {
		if t.podLabels()[k] != "" {
			t.bad("metadata.labels", "%s is set by berth", k)
		}
	}
	t.ns = t.namespaces()
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: m.Name, Namespace: m.Namespace, Uid: string(m.UID)},
		Labels:   labels, Annotations: maps.Clone(m.Annotations),
		LogDirectory: path.Join(t.o.LogDir, m.Namespace+"_"+m.Name+"_"+string(m.UID)),
		DnsConfig:    t.dns(),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: t.ns,
				Privileged:       t.anyPrivileged(),
				Seccomp:          runtimeDefault(),
			},
		},
	}
	if sc := s.SecurityContext; sc != nil {
		to := cfg.Linux.SecurityContext
		to.RunAsUser, to.RunAsGroup, to.SupplementalGroups = number(sc.RunAsUser), number(sc.RunAsGroup), sc.SupplementalGroups
		for _, y := range sc.Sysctls {
			if cfg.Linux.Sysctls == nil {
				cfg.Linux.Sysctls = map[string]string{}
			}
			cfg.Linux.Sysctls[y.Name] = y.Value
		}
		t.id("spec.securityContext.runAsUser", sc.RunAsUser)
		t.id("spec.securityContext.runAsGroup", sc.RunAsGroup)
		for i := range sc.SupplementalGroups {
			t.id(fmt.Sprintf("spec.securityContext.supplementalGroups[%d]", i), &sc.SupplementalGroups[i])
		}
		if sc.RunAsUser == nil && sc.RunAsGroup != nil {
			to.RunAsGroup = nil // CRI takes none without a user; the containers that name one have it
		}
	}
	if !s.HostNetwork {
		cfg.Hostname = t.hostname()
		cfg.PortMappings = t.ports()
	}
	if s.RuntimeClassName != nil {
		t.plan.Handler = *s.RuntimeClassName
	}
	if g := s.TerminationGracePeriodSeconds; g != nil {
		if t.plan.Grace = *g; *g < 0 {
			t.bad("spec.terminationGracePeriodSeconds", "%d is negative", *g)
		}
	}
	t.plan.Sandbox = cfg
}

// namespaces are the same for the sandbox and its containers, as the kubelet sends them.
func (t *translation) namespaces() *runtimeapi.NamespaceOption {
	s := t.pod.Spec
	n := &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_POD, Pid: runtimeapi.NamespaceMode_CONTAINER, Ipc: runtimeapi.NamespaceMode_POD}
	share := s.ShareProcessNamespace != nil && *s.ShareProcessNamespace
	switch {
	case share && s.HostPID:
		t.bad("spec.shareProcessNamespace", "it cannot be together with hostPID")
	case share:
		n.Pid = runtimeapi.NamespaceMode_POD
	case s.HostPID:
		n.Pid = runtimeapi.NamespaceMode_NODE
	}
	if s.HostNetwork {
		n.Network = runtimeapi.NamespaceMode_NODE
	}
	if s.HostIPC {
		n.Ipc = runtimeapi.NamespaceMode_NODE
	}
	return n
}

func (t *translation) anyPrivileged() bool {
	return slices.ContainsFunc(append(slices.Clone(t.pod.Spec.InitContainers), t.pod.Spec.Containers...), func(c corev1.Container) bool {
		return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
	})
}

// hostname is at most 63 bytes long, what sethostname(2) and DNS take alike.
func (t *translation) hostname() string {
	h := t.pod.Spec.Hostname
	if h == "" {
		h = t.pod.Name
		if len(h) > 63 {
			h = strings.TrimRight(h[:63], "-.")
		}
		return h
	}
	if !dnsLabel.MatchString(h) || len(h) > 63 {
		t.bad("spec.hostname", "%q is not lower-case letters, digits and hyphens, 63 at most", h)
	}
	return h
}

// dns: without a cluster there is no cluster's DNS, so every policy but None means the host's.
func (t *translation) dns() *runtimeapi.DNSConfig {
	s := t.pod.Spec
	base := t.o.HostDNS
	switch s.DNSPolicy {
	case corev1.DNSNone:
		base = nil
		if s.DNSConfig == nil || len(s.DNSConfig.Nameservers) == 0 {
			t.bad("spec.dnsConfig.nameservers", "there is none, and dnsPolicy is None")
			return nil
		}
	case "", corev1.DNSDefault, corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet:
	default:
		t.bad("spec.dnsPolicy", "%q is not Default, ClusterFirst, ClusterFirstWithHostNet or None", s.DNSPolicy)
	}
	if s.DNSConfig == nil {
		return nil // the service takes the host's
	}
	d := &runtimeapi.DNSConfig{Servers: slices.Clone(base.GetServers()), Searches: slices.Clone(base.GetSearches())}
	d.Servers = append(d.Servers, s.DNSConfig.Nameservers...)
	d.Searches = append(d.Searches, s.DNSConfig.Searches...)
	own := map[string]bool{}
	var options []string
	for _, o := range s.DNSConfig.Options {
		own[o.Name] = true
		if o.Value != nil {
			options = append(options, o.Name+":"+*o.Value)
			continue
		}
		options = append(options, o.Name)
	}
	for _, o := range base.GetOptions() { // the pod's word counts
		if name, _, _ := strings.Cut(o, ":"); !own[name] {
			d.Options = append(d.Options, o)
		}
	}
	d.Options = append(d.Options, options...)
	for i, n := range s.DNSConfig.Nameservers {
		if _, err := netip.ParseAddr(n); err != nil {
			t.bad(fmt.Sprintf("spec.dnsConfig.nameservers[%d]", i), "%q is no IP address", n)
		}
	}
	for _, w := range append(slices.Clone(d.Searches), d.Options...) {
		if w == "" || strings.ContainsAny(w, " \t\n") { // it would become a line of its own in resolv.conf
			t.bad("spec.dnsConfig", "%q is not one word", w)
		}
	}
	return d
}

func (t *translation) ports() []*runtimeapi.PortMapping {
	var out []*runtimeapi.PortMapping
	taken := map[string]string{}
	for i, c := range t.pod.Spec.Containers {
		for j, p := range c.Ports {
			field := fmt.Sprintf("spec.containers[%d].ports[%d]", i, j)
			proto, ok := map[corev1.Protocol]runtimeapi.Protocol{
				"": runtimeapi.Protocol_TCP, corev1.ProtocolTCP: runtimeapi.Protocol_TCP, corev1.ProtocolUDP: runtimeapi.Protocol_UDP, corev1.ProtocolSCTP: runtimeapi.Protocol_SCTP,
			}[p.Protocol]
			if !ok {
				t.bad(field+".protocol", "%q is not TCP, UDP or SCTP", p.Protocol)
			}
			if p.ContainerPort < 1 || p.ContainerPort > 65535 {
				t.bad(field+".containerPort", "%d is no port", p.ContainerPort)
			}
			if p.HostPort < 0 || p.HostPort > 65535 {
				t.bad(field+".hostPort", "%d is no port", p.HostPort)
			}
			if _, err := netip.ParseAddr(p.HostIP); p.HostIP != "" && err != nil {
				t.bad(field+".hostIP", "%q is no IP address", p.HostIP)
			}
			if key := fmt.Sprintf("%s %s %d", proto, p.HostIP, p.HostPort); p.HostPort != 0 {
				if other := taken[key]; other != "" {
					t.bad(field+".hostPort", "%d is taken by %s", p.HostPort, other)
				}
				taken[key] = field
			}
			out = append(out, &runtimeapi.PortMapping{Protocol: proto, ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP})
		}
	}
	return out
}

func (t *translation) volumes() {
	dir := path.Join(t.o.VolumeDir, string(t.pod.UID))
	for i, v := range t.pod.Spec.Volumes {
		field := fmt.Sprintf("spec.volumes[%d]", i)
		if !dnsLabel.MatchString(v.Name) || len(v.Name) > 63 {
			t.bad(field+".name", "%q is not lower-case letters, digits and hyphens", v.Name)
			continue
		}
		if slices.ContainsFunc(t.plan.Volumes, func(p PlannedVolume) bool { return p.Name == v.Name }) {
			t.bad(field+".name", "%s is there twice", v.Name)
		}
		switch {
		case v.HostPath != nil:
			kind := corev1.HostPathUnset
			if v.HostPath.Type != nil {
				kind = *v.HostPath.Type
			}
			if !path.IsAbs(v.HostPath.Path) || slices.Contains(strings.Split(v.HostPath.Path, "/"), "..") {
				t.bad(field+".hostPath.path", "%q is no absolute path without ..", v.HostPath.Path)
			}
			t.plan.Volumes = append(t.plan.Volumes, PlannedVolume{v.Name, path.Clean(v.HostPath.Path), string(kind)})
		default:
			// Kinds that are not done are named by unsupported; where they are ignored, an empty directory stands in,
			// so that mounts of it work.
			t.plan.Volumes = append(t.plan.Volumes, PlannedVolume{v.Name, path.Join(dir, v.Name), emptyDir})
		}
	}
}

func runtimeDefault() *runtimeapi.SecurityProfile {
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
}

func number(v *int64) *runtimeapi.Int64Value {
	if v == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *v}
}

// id: what does not fit into 32 bits would become another user, root for one.
func (t *translation) id(field string, v *int64) {
	if v != nil && (*v < 0 || *v > 1<<31-1) {
		t.bad(field, "%d is no ID", *v)
	}
}
