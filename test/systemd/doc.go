// SPDX-License-Identifier: Apache-2.0

// Package systemd proves the unit files of contrib/, the systemd cgroup driver and `berth migrate`:
// berth, as `make install` installs it, runs as a service of a real systemd, which starts and stops
// it, keeps its descriptors and makes the cgroups of its pods, and takes the place of a service of
// containerd.
//
// The tests change the units and the settings of the host. They run in a guest whose process 1 is
// Debian's systemd: `make test-systemd`.
package systemd
