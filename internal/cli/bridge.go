// SPDX-License-Identifier: Apache-2.0

package cli

import "github.com/vishvananda/netlink"

// removeBridge takes the demo's bridge away; CNI leaves it for the next pod.
func removeBridge(name string) {
	if l, err := netlink.LinkByName(name); err == nil {
		_ = netlink.LinkDel(l)
	}
}
