// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"berth/internal/heart/state"
	"berth/internal/host/network"
	"berth/internal/host/spec"
)

// netResult returns the recorded result of a network; the zero result for none.
func netResult(n *state.Network) network.Result {
	if n == nil {
		return network.Result{}
	}
	return network.Result{
		IPs:      n.IPs,
		Raw:      n.Result,
		Conf:     n.Conf,
		Firewall: n.Firewall,
	}
}

// netPod describes the sandbox to the network.
func netPod(sb *state.Sandbox) network.Pod {
	m := sb.Config.GetMetadata()
	p := network.Pod{
		ID:           sb.ID,
		Name:         m.GetName(),
		Namespace:    m.GetNamespace(),
		UID:          m.GetUid(),
		Handler:      sb.Handler,
		NetNS:        sb.NetNS,
		Annotations:  sb.Config.GetAnnotations(),
		CgroupParent: sb.Config.GetLinux().GetCgroupParent(),
	}
	if dns := sb.Config.GetDnsConfig(); dns != nil {
		p.DNS = network.DNS{Servers: dns.GetServers(), Searches: dns.GetSearches(), Options: dns.GetOptions()}
	}
	if b, err := spec.BandwidthOf(sb.Config.GetAnnotations()); err == nil { // else it was refused
		p.Bandwidth = network.Bandwidth(b)
	}
	for _, pm := range sb.Config.GetPortMappings() {
		if pm.GetHostPort() <= 0 {
			continue
		}
		p.Ports = append(p.Ports, network.PortMapping{
			HostPort:      pm.GetHostPort(),
			ContainerPort: pm.GetContainerPort(),
			HostIP:        pm.GetHostIp(),
			Protocol:      pm.GetProtocol().String(),
		})
	}
	return p
}
