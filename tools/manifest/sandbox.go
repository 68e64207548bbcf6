// SPDX-License-Identifier: Apache-2.0

package manifest

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

// The labels and annotations that the kubelet puts on pods and containers. Node agents read them.
const (
	labelPodName       = "io.kubernetes.pod.name"
	labelPodNamespace  = "io.kubernetes.pod.namespace"
	labelPodUID        = "io.kubernetes.pod.uid"
	labelContainerName = "io.kubernetes.container.name"

	annotationRestarts = "io.kubernetes.container.restartCount"
	// AnnotationGrace holds the pod's grace period, in seconds, on each of its containers.
	AnnotationGrace = "io.kubernetes.pod.terminationGracePeriod"
)

func (t *translation) podLabels() map[string]string {
	m := t.pod.ObjectMeta
	return map[string]string{labelPodName: m.Name, labelPodNamespace: m.Namespace, labelPodUID: string(m.UID)}
}

// sandbox translates everything that belongs to the pod as a whole.
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
	t.namespaces = t.namespaceOptions()
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: m.Name, Namespace: m.Namespace, Uid: string(m.UID)},
		Labels:       labels,
		Annotations:  maps.Clone(m.Annotations),
		LogDirectory: path.Join(t.options.LogDir, m.Namespace+"_"+m.Name+"_"+string(m.UID)),
		DnsConfig:    t.dns(),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: t.namespaces,
				Privileged:       t.anyPrivileged(),
				Seccomp:          runtimeDefault(),
			},
		},
	}
	if sc := s.SecurityContext; sc != nil {
		t.sandboxSecurity(sc, cfg.Linux)
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

func (t *translation) sandboxSecurity(sc *corev1.PodSecurityContext, to *runtimeapi.LinuxPodSandboxConfig) {
	t.id("spec.securityContext.runAsUser", sc.RunAsUser)
	t.id("spec.securityContext.runAsGroup", sc.RunAsGroup)
	for i := range sc.SupplementalGroups {
		t.id(fmt.Sprintf("spec.securityContext.supplementalGroups[%d]", i), &sc.SupplementalGroups[i])
	}
	to.SecurityContext.RunAsUser = number(sc.RunAsUser)
	// CRI refuses a sandbox with a group and without a user. A container that names a group has it.
	if sc.RunAsUser != nil {
		to.SecurityContext.RunAsGroup = number(sc.RunAsGroup)
	}
	to.SecurityContext.SupplementalGroups = t.groups()
	t.policy = t.groupsPolicy(sc.SupplementalGroupsPolicy)
	to.SecurityContext.SupplementalGroupsPolicy = t.policy
	to.SecurityContext.SelinuxOptions = selinuxOptions(sc.SELinuxOptions)
	to.SecurityContext.Apparmor = t.apparmor("spec.securityContext", sc.AppArmorProfile)
	t.id("spec.securityContext.fsGroup", sc.FSGroup)
	for _, y := range sc.Sysctls {
		if to.Sysctls == nil {
			to.Sysctls = map[string]string{}
		}
		to.Sysctls[y.Name] = y.Value
	}
}

// namespaceOptions returns the options that the kubelet sends for the sandbox and for each of its
// containers.
func (t *translation) namespaceOptions() *runtimeapi.NamespaceOption {
	s := t.pod.Spec
	n := &runtimeapi.NamespaceOption{
		Network: runtimeapi.NamespaceMode_POD,
		Pid:     runtimeapi.NamespaceMode_CONTAINER,
		Ipc:     runtimeapi.NamespaceMode_POD,
	}
	share := s.ShareProcessNamespace != nil && *s.ShareProcessNamespace
	switch {
	case share && s.HostPID:
		t.bad("spec.shareProcessNamespace", "it cannot be combined with hostPID")
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
	if HasOwnUsers(t.pod) {
		if s.HostNetwork || s.HostPID || s.HostIPC {
			t.bad("spec.hostUsers", "false cannot be combined with hostNetwork, hostPID or hostIPC")
		}
		n.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: t.ids(), Gids: t.ids()}
	}
	return n
}

// ids are the IDs of a pod with a user namespace; nil means that it has none.
func (t *translation) ids() []*runtimeapi.IDMapping {
	if !HasOwnUsers(t.pod) {
		return nil
	}
	return []*runtimeapi.IDMapping{{HostId: t.options.FirstID, Length: IDs}}
}

func (t *translation) anyPrivileged() bool {
	return slices.ContainsFunc(slices.Concat(t.pod.Spec.InitContainers, t.pod.Spec.Containers), func(c corev1.Container) bool {
		return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
	})
}

// hostname returns a name of at most 63 bytes, the limit of both sethostname(2) and DNS.
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
		t.bad("spec.hostname", "%q is not at most 63 lower-case letters, digits and hyphens", h)
	}
	return h
}

// dns translates dnsPolicy and dnsConfig. Without a cluster there is no cluster DNS, so every
// policy except None means the host's. It returns nil if the pod has no dnsConfig: the service then
// copies the host's resolv.conf.
func (t *translation) dns() *runtimeapi.DNSConfig {
	s := t.pod.Spec
	base := t.options.HostDNS
	switch s.DNSPolicy {
	case corev1.DNSNone:
		base = nil
		if s.DNSConfig == nil || len(s.DNSConfig.Nameservers) == 0 {
			t.bad("spec.dnsConfig.nameservers", "it is empty, and dnsPolicy is None")
			return nil
		}
	case "", corev1.DNSDefault, corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet:
	default:
		t.bad("spec.dnsPolicy", "%q is not Default, ClusterFirst, ClusterFirstWithHostNet or None", s.DNSPolicy)
	}
	if s.DNSConfig == nil {
		return nil
	}
	for i, n := range s.DNSConfig.Nameservers {
		if _, err := netip.ParseAddr(n); err != nil {
			t.bad(fmt.Sprintf("spec.dnsConfig.nameservers[%d]", i), "%q is not an IP address", n)
		}
	}
	d := &runtimeapi.DNSConfig{
		Servers:  slices.Concat(base.GetServers(), s.DNSConfig.Nameservers),
		Searches: slices.Concat(base.GetSearches(), s.DNSConfig.Searches),
		Options:  dnsOptions(base.GetOptions(), s.DNSConfig.Options),
	}
	for _, w := range slices.Concat(d.Searches, d.Options) {
		// a newline would start another line of resolv.conf
		if w == "" || strings.ContainsAny(w, " \t\n") {
			t.bad("spec.dnsConfig", "%q is not one word", w)
		}
	}
	return d
}

// dnsOptions returns the host's options followed by the pod's. An option of the pod replaces the
// host's option of the same name.
func dnsOptions(host []string, pod []corev1.PodDNSConfigOption) []string {
	own := map[string]bool{}
	var added []string
	for _, o := range pod {
		own[o.Name] = true
		if o.Value != nil {
			added = append(added, o.Name+":"+*o.Value)
			continue
		}
		added = append(added, o.Name)
	}
	kept := slices.DeleteFunc(slices.Clone(host), func(o string) bool {
		name, _, _ := strings.Cut(o, ":")
		return own[name]
	})
	return append(kept, added...)
}

// protocols are the API's protocols as CRI names them. TCP is the default.
var protocols = map[corev1.Protocol]runtimeapi.Protocol{
	"":                  runtimeapi.Protocol_TCP,
	corev1.ProtocolTCP:  runtimeapi.Protocol_TCP,
	corev1.ProtocolUDP:  runtimeapi.Protocol_UDP,
	corev1.ProtocolSCTP: runtimeapi.Protocol_SCTP,
}

func (t *translation) ports() []*runtimeapi.PortMapping {
	var out []*runtimeapi.PortMapping
	taken := map[string]string{}
	for i, c := range t.pod.Spec.Containers {
		for j, p := range c.Ports {
			field := fmt.Sprintf("spec.containers[%d].ports[%d]", i, j)
			proto, ok := protocols[p.Protocol]
			if !ok {
				t.bad(field+".protocol", "%q is not TCP, UDP or SCTP", p.Protocol)
			}
			if p.ContainerPort < 1 || p.ContainerPort > 65535 {
				t.bad(field+".containerPort", "%d is not a port", p.ContainerPort)
			}
			if p.HostPort < 0 || p.HostPort > 65535 {
				t.bad(field+".hostPort", "%d is not a port", p.HostPort)
			}
			if _, err := netip.ParseAddr(p.HostIP); p.HostIP != "" && err != nil {
				t.bad(field+".hostIP", "%q is not an IP address", p.HostIP)
			}
			if key := fmt.Sprintf("%s %s %d", proto, p.HostIP, p.HostPort); p.HostPort != 0 {
				if other := taken[key]; other != "" {
					t.bad(field+".hostPort", "%d is used by %s already", p.HostPort, other)
				}
				taken[key] = field
			}
			out = append(out, &runtimeapi.PortMapping{
				Protocol:      proto,
				ContainerPort: p.ContainerPort,
				HostPort:      p.HostPort,
				HostIp:        p.HostIP,
			})
		}
	}
	return out
}

func number(v *int64) *runtimeapi.Int64Value {
	if v == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *v}
}

// id checks a user or group ID. One that does not fit into 32 bits would become another user,
// possibly root.
func (t *translation) id(field string, v *int64) {
	if v != nil && (*v < 0 || *v > 1<<31-1) {
		t.bad(field, "%d is not between 0 and %d", *v, 1<<31-1)
	}
}
