// SPDX-License-Identifier: Apache-2.0

package cluster

import "testing"

// One node is a cluster.
func TestOneNode(t *testing.T) {
	c := start(t, 1)
	c.serves(2)
}
