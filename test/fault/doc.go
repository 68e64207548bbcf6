// SPDX-License-Identifier: Apache-2.0

// Package fault proves berth with real containers on a node where things go wrong: a shim, a runc
// and CNI plug-ins that fail, stall or die on demand at a named step (tools/programs/faulty), disks
// that are full, mounts that are busy, and SIGKILL for berth, containerd and shims at random
// instants.
//
// Each test is named after the fault that it shows. A random test prints its seed; BERTH_SEED takes
// it back, and BERTH_ROUNDS multiplies the number of random rounds.
//
// Every test ends with the look for leaks of package node. The tests need root and the output of
// `make tools build`; without them they fail.
package fault
