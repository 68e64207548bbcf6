// SPDX-License-Identifier: Apache-2.0

// Package spec translates CRI requests into OCI runtime specifications.
//
// # Promises
//
//   - The translation is pure: [Host] describes the host, and [Container] the image. Only
//     [ReadHost], [DeviceAt] and [LoadBase] read files, and none of them is called by the
//     translation. The same input gives the same specification, except for the SELinux category
//     that [Host].SELinux allocates.
//   - Nothing of the input is aliased or changed: two containers of one image share nothing.
//   - A setting that the host does not support is left out and reported as [Degraded] if the
//     container works without it, and refused with ErrFailedPrecondition otherwise. Confinement is
//     never left out in silence.
//   - Bad input is ErrInvalidArgument and names the field as CRI spells it. [CheckSandbox],
//     [CheckContainer] and [CheckImage] reject oversized requests before anything is made.
//
// # Never
//
// A translation resolves no path: whether a host path exists is for its caller and the OCI runtime
// to find out. Annotations never become properties of systemd units, and a sysctl is never more
// than one setting.
package spec
