// SPDX-License-Identifier: Apache-2.0

// Package spec translates what CRI asks for into an OCI runtime specification.
//
// # Promises
//
//   - The translation is pure: what it must know of the host is in [Host], and what it must know of
//     the image is in [Container]. Only [ReadHost], [DeviceAt] and [LoadBase] read files, and none
//     of them is called by the translation. The same input gives the same specification, except for
//     the SELinux category that [Host].SELinux allocates.
//   - Nothing of the input is aliased or changed: two containers of one image share nothing.
//   - What the host cannot do is left out and reported as [Degraded] where the container still
//     works without it, and refused with ErrFailedPrecondition where it would not. Confinement is
//     never left out in silence.
//   - Bad input is ErrInvalidArgument and names the field as CRI spells it. [CheckSandbox],
//     [CheckContainer] and [CheckImage] find what is too large before anything is made.
//
// # Never
//
// A translation resolves no path: whether a host path exists is for its caller and the OCI runtime
// to find out.
// Annotations never become properties of systemd units, and a sysctl is never more than one
// setting.
package spec
