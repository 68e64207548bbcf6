// SPDX-License-Identifier: Apache-2.0

// Package e2e proves berth with real containers: the built binary, as its own process, spoken to
// over its socket. Each test has a berth of its own, with directories, a bridge and a subnet of its
// own, and ends with a search for leaks: shims, mounts, network namespaces, cgroups.
//
// The tests need root and the output of `make tools build`; without them they fail.
package e2e
