// SPDX-License-Identifier: Apache-2.0

// Package fault proves berth with real containers on a node where things go wrong: a shim, a runc
// and CNI plug-ins that fail, stall or die on demand at a named step (tools/programs/faulty), disks that are
// full, mounts that are busy, and SIGKILL for berth, containerd and shims at random instants.
//
// Each test is named after what it shows. What is random prints its seed; BERTH_SEED takes it back,
// and BERTH_ROUNDS makes the random part larger: it multiplies what is done by default.
//
// Every test ends with the look for leaks of package node. The tests need root and what `make tools
// build` builds; without them they fail.
package fault
