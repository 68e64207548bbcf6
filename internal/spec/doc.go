// SPDX-License-Identifier: Apache-2.0

// Package spec translates what CRI asks for into an OCI runtime specification.
//
// # Promises
//
//   - Pure: what it must know of the host is in [Host], what it must know of the image in
//     [Container]. Only [ReadHost] and [DeviceAt] read the host. The same input gives the same
//     specification, but for the SELinux category that [Host].SELinux allocates.
//   - Nothing of the input is aliased or changed: two containers of one image share nothing.
//   - What the host cannot do is left out and reported as [Degraded] where the container still
//     works without it, and refused with ErrFailedPrecondition where it would not. Confinement is
//     never left out without a word.
//   - Bad input is ErrInvalidArgument and names the field as CRI spells it. [CheckSandbox],
//     [CheckContainer] and [CheckImage] find what is too large before anything is made.
//
// # Never
//
// No file is read and no path resolved: whether a host path exists is for the OCI runtime to find.
// Annotations never become properties of systemd units, and a sysctl is never more than one
// setting.
package spec
