// SPDX-License-Identifier: Apache-2.0

// Package spec turns what CRI asks for into an OCI runtime specification.
//
// # Promises
//
//   - Pure: all it must know of the host is in [Host], all it must know of the image in
//     [Container]; only [ReadHost] looks. The same input gives the same specification.
//   - Nothing of the input is aliased or changed: two containers of one image share nothing.
//   - What the host cannot do is left out and reported as [Degraded] where the container still works
//     without it, and refused where it would not.
//   - Bad input is ErrInvalidArgument and names the field.
//
// # Never
//
// No file is read, no path resolved: whether a host path exists is for the OCI runtime to find.
// Annotations never become properties of systemd units, sysctls never more than one setting.
package spec
