// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Attempt is WithPodIP for the nth restart of the container: attempts have logs of their own.
func (c Container) Attempt(ip string, n uint32) *runtimeapi.ContainerConfig {
	cfg := c.WithPodIP(ip)
	cfg.Metadata.Attempt = n
	cfg.Annotations[annotationRestarts] = strconv.FormatUint(uint64(n), 10)
	cfg.LogPath = path.Join(cfg.Metadata.Name, strconv.FormatUint(uint64(n), 10)+".log")
	return cfg
}

// WithPodIP returns a copy of the container's configuration with the pod's address in every place
// that refers to status.podIP.
func (c Container) WithPodIP(ip string) *runtimeapi.ContainerConfig {
	cfg := proto.Clone(c.Config).(*runtimeapi.ContainerConfig)
	for _, list := range [][]string{cfg.Command, cfg.Args} {
		for i := range list {
			list[i] = strings.ReplaceAll(list[i], podIPMark, ip)
		}
	}
	for _, e := range cfg.Envs {
		e.Value = bytes.ReplaceAll(e.Value, []byte(podIPMark), []byte(ip))
	}
	return cfg
}

// container translates the container at this path and appends it to a list of the plan. seen holds
// the names of the containers before it.
func (t *translation) container(field string, c *corev1.Container, seen map[string]bool, to *[]Container) {
	if !dnsLabel.MatchString(c.Name) || len(c.Name) > 63 {
		t.bad(field+".name", "%q is not lower-case letters, digits and hyphens", c.Name)
		return
	}
	if seen[c.Name] {
		t.bad(field+".name", "%s is used twice", c.Name)
	}
	seen[c.Name] = true
	if c.Image == "" {
		t.bad(field+".image", "it is missing")
	}
	labels := t.podLabels()
	labels[labelContainerName] = c.Name
	p := Container{
		PullPolicy: t.pullPolicy(field+".imagePullPolicy", c.ImagePullPolicy),
		Config: &runtimeapi.ContainerConfig{
			Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name},
			Image:       &runtimeapi.ImageSpec{Image: c.Image, UserSpecifiedImage: c.Image},
			Labels:      labels,
			Annotations: map[string]string{annotationRestarts: "0"},
			WorkingDir:  c.WorkingDir,
			LogPath:     path.Join(c.Name, "0.log"),
			Tty:         c.TTY,
			Stdin:       c.Stdin,
			StdinOnce:   c.StdinOnce,
			Mounts:      t.mounts(field, c),
			Linux:       &runtimeapi.LinuxContainerConfig{Resources: t.resources(field, c)},
		},
	}
	if g := t.pod.Spec.TerminationGracePeriodSeconds; g != nil {
		p.Config.Annotations[AnnotationGrace] = strconv.FormatInt(*g, 10)
	}
	var vars map[string]string
	p.Config.Envs, vars = t.env(field, c)
	for _, s := range c.Command {
		p.Config.Command = append(p.Config.Command, expand(s, vars))
	}
	for _, s := range c.Args {
		p.Config.Args = append(p.Config.Args, expand(s, vars))
	}
	t.security(field+".securityContext", c, &p)
	p.Probes = t.probes(field, c)
	*to = append(*to, p)
}

// pullPolicy differs from a cluster's in one point: the default is not Always for the tag latest,
// because an image that was imported has no registry that could be asked.
func (t *translation) pullPolicy(field string, p corev1.PullPolicy) string {
	switch p {
	case "":
		return string(corev1.PullIfNotPresent)
	case corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		t.bad(field, "%q is not Always, IfNotPresent or Never", p)
	}
	return string(p)
}

func (t *translation) mounts(field string, c *corev1.Container) []*runtimeapi.Mount {
	var out []*runtimeapi.Mount
	seen := map[string]bool{}
	for i, m := range c.VolumeMounts {
		field := fmt.Sprintf("%s.volumeMounts[%d]", field, i)
		at := slices.IndexFunc(t.plan.Volumes, func(v Volume) bool { return v.Name == m.Name })
		if at < 0 {
			t.bad(field+".name", "the pod has no volume %q", m.Name)
			continue
		}
		if !path.IsAbs(m.MountPath) || strings.Contains(m.MountPath, ":") {
			t.bad(field+".mountPath", "%q is not an absolute path without a colon", m.MountPath)
		}
		if seen[path.Clean(m.MountPath)] {
			t.bad(field+".mountPath", "%s is used twice", m.MountPath)
		}
		seen[path.Clean(m.MountPath)] = true
		out = append(out, &runtimeapi.Mount{
			HostPath:      t.plan.Volumes[at].Path,
			ContainerPath: m.MountPath,
			Readonly:      m.ReadOnly,
			UidMappings:   t.ids(),
			GidMappings:   t.ids(),
			Propagation:   t.propagation(field+".mountPropagation", c, m.MountPropagation),
		})
	}
	return out
}

func (t *translation) propagation(field string, c *corev1.Container, p *corev1.MountPropagationMode) runtimeapi.MountPropagation {
	if p == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
	}
	switch *p {
	case corev1.MountPropagationNone:
	case corev1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	case corev1.MountPropagationBidirectional:
		if c.SecurityContext == nil || c.SecurityContext.Privileged == nil || !*c.SecurityContext.Privileged {
			t.bad(field, "only privileged containers may use Bidirectional")
		}
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	default:
		t.bad(field, "%q is not None, HostToContainer or Bidirectional", *p)
	}
	return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
}

// CPU shares and quota follow the kubelet: 1024 shares are one CPU and 2 shares are the least; the
// quota is per 100 ms and at least 1 ms.
const (
	minShares   = 2
	maxShares   = 1 << 18
	quotaPeriod = 100_000 // µs
	minQuota    = 1_000   // µs

	// bestEffortOOMScore makes the OOM killer choose pods without requests and limits first, as in a
	// cluster. Other pods keep 0: without the node's capacity, a request is not a share of anything.
	bestEffortOOMScore = 1000
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
		r.CpuShares = min(max(cpu*1024/1000, minShares), maxShares)
	}
	if limit := c.Resources.Limits.Cpu().MilliValue(); limit > 0 {
		r.CpuPeriod, r.CpuQuota = quotaPeriod, max(limit*quotaPeriod/1000, minQuota)
	}
	r.MemoryLimitInBytes = c.Resources.Limits.Memory().Value()
	if t.bestEffort() {
		r.OomScoreAdj = bestEffortOOMScore
	}
	return r
}

// bestEffort reports whether no container of the pod has a request or a limit.
func (t *translation) bestEffort() bool {
	return !slices.ContainsFunc(slices.Concat(t.pod.Spec.InitContainers, t.pod.Spec.Containers), func(c corev1.Container) bool {
		return len(c.Resources.Limits)+len(c.Resources.Requests) > 0
	})
}
