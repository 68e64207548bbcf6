// SPDX-License-Identifier: Apache-2.0

package network

import (
	"math"
	"slices"

	"github.com/containernetworking/cni/libcni"
)

// CNI's names for the capabilities of plug-ins. The library hands the argument of a capability to
// the plug-ins of a list that declare it, and to no other.
const (
	capabilityBandwidth = "bandwidth"
	capabilityDNS       = "dns"
	capabilityPorts     = "portMappings"
)

// capability returns the argument of the capability "bandwidth", in CNI's convention. A rate needs
// a burst: where the pod asks for none it is as large as a plug-in takes it.
func (b Bandwidth) capability() map[string]uint64 {
	out := map[string]uint64{}
	if b.Ingress > 0 {
		out["ingressRate"], out["ingressBurst"] = b.Ingress, math.MaxUint32
	}
	if b.Egress > 0 {
		out["egressRate"], out["egressBurst"] = b.Egress, math.MaxUint32
	}
	return out
}

// portmap is the CNI project's plug-in that publishes ports. Without any it changes nothing, and
// starting it for each pod takes its time all the same.
const portmap = "portmap"

// needed returns a list without the plug-ins that have nothing to do for a pod.
func needed(list *libcni.NetworkConfigList, p Pod) *libcni.NetworkConfigList {
	if len(p.Ports) > 0 {
		return list
	}
	l := *list
	l.Plugins = slices.DeleteFunc(slices.Clone(list.Plugins), func(c *libcni.PluginConfig) bool {
		return c.Network.Type == portmap && c.Network.Capabilities[capabilityPorts]
	})
	if len(l.Plugins) == 0 { // it may be some other plug-in of that name
		return list
	}
	return &l
}

// offers reports whether a plug-in of a list declares a capability.
func offers(list *libcni.NetworkConfigList, capability string) bool {
	for _, p := range list.Plugins {
		if p.Network.Capabilities[capability] {
			return true
		}
	}
	return false
}
