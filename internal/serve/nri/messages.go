// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/heart/pod"
)

// podOf describes the pod of a target to plug-ins.
func podOf(t pod.Target) *api.PodSandbox {
	m := t.PodConfig.GetMetadata()
	p := &api.PodSandbox{
		Id:             t.PodID,
		Name:           m.GetName(),
		Uid:            m.GetUid(),
		Namespace:      m.GetNamespace(),
		Labels:         t.PodConfig.GetLabels(),
		Annotations:    t.PodConfig.GetAnnotations(),
		RuntimeHandler: t.Handler.Name,
		Linux: &api.LinuxPodSandbox{
			CgroupParent: t.CgroupParent,
			PodOverhead:  podResources(t.PodOverhead),
			PodResources: podResources(t.PodResources),
		},
		Ips: t.IPs,
	}
	if t.NetNS != "" {
		p.Linux.Namespaces = []*api.LinuxNamespace{{Type: string(specs.NetworkNamespace), Path: t.NetNS}}
	}
	if t.ID == t.PodID {
		p.Pid = t.Process.Pid
	}
	return p
}

// containerOf describes a container to plug-ins. The state and the instants are the caller's.
func containerOf(t pod.Target, oci *specs.Spec) *api.Container {
	c := &api.Container{
		Id:           t.ID,
		PodSandboxId: t.PodID,
		Name:         t.Config.GetMetadata().GetName(),
		Labels:       t.Config.GetLabels(),
		Annotations:  oci.Annotations,
		Mounts:       api.FromOCIMounts(oci.Mounts),
		Hooks:        api.FromOCIHooks(oci.Hooks),
		Linux:        &api.LinuxContainer{},
		Image:        &api.Image{Name: t.Config.GetImage().GetImage()},
	}
	for _, d := range t.Config.GetCDIDevices() {
		c.CDIDevices = append(c.CDIDevices, &api.CDIDevice{Name: d.GetName()})
	}
	if p := oci.Process; p != nil {
		c.Args, c.Env = p.Args, p.Env
		c.User = &api.User{Uid: p.User.UID, Gid: p.User.GID, AdditionalGids: p.User.AdditionalGids}
		c.Linux.OomScoreAdj = api.Int(p.OOMScoreAdj)
		for _, l := range p.Rlimits {
			c.Rlimits = append(c.Rlimits, &api.POSIXRlimit{Type: l.Type, Hard: l.Hard, Soft: l.Soft})
		}
	}
	if l := oci.Linux; l != nil {
		c.Linux.Namespaces = api.FromOCILinuxNamespaces(l.Namespaces)
		c.Linux.Devices = api.FromOCILinuxDevices(l.Devices)
		c.Linux.Resources = api.FromOCILinuxResources(l.Resources, nil)
		c.Linux.CgroupsPath = l.CgroupsPath
		c.Linux.Sysctl = l.Sysctl
	}
	return c
}
