// SPDX-License-Identifier: Apache-2.0

// Package dist proves the release: an archive and a Debian package, on a fresh Debian that has
// neither Go nor a compiler, network or registry. They are installed, upgraded while a pod runs,
// and removed.
//
// The tests change the host. They run in a guest: `make test-dist`.
package dist
