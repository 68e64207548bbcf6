// SPDX-License-Identifier: Apache-2.0

package network

import (
	"math"

	"github.com/containernetworking/cni/libcni"
)

// CNI's names of what plug-ins may be capable of. The library hands the argument of a capability to
// the plug-ins of a list that declare it, and to no other.
const (
	capabilityBandwidth = "bandwidth"
	capabilityPorts     = "portMappings"
)

// capability is the argument of the capability "bandwidth", in CNI's convention. A rate needs a
// burst: without a wish of the pod's it is as large as a plug-in takes it.
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

// offers reports whether a plug-in of a list declares a capability.
func offers(list *libcni.NetworkConfigList, capability string) bool {
	for _, p := range list.Plugins {
		if p.Network.Capabilities[capability] {
			return true
		}
	}
	return false
}
