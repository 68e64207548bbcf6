// SPDX-License-Identifier: Apache-2.0

package cluster

// row is what a user noticed of one thing that was done to the cluster.
type row struct{ what string }
