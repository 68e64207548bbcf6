// SPDX-License-Identifier: Apache-2.0

// Package testimage builds small container images in memory, with no registry and no network: for
// tests, and for the archive that comes with berth for its demo. The file system of Busybox is made
// from the static busybox of the host.
//
// It promises that the same contents give the same digests, every time: no time stamp, owner or
// order of the host gets in.
//
// A registry to pull from is in the sub-package testregistry. Neither package is linked into the
// berth binary.
package testimage
