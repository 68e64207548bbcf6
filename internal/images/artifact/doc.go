// SPDX-License-Identifier: Apache-2.0

// Package artifact recognizes an OCI artifact, and lays its files out in a directory. An artifact
// is a manifest whose layers are not the layers of a file system, but files that have their names
// from annotations.
//
// # Promises
//
//   - A file has the name that its layer has in org.opencontainers.image.title, or else in
//     org.cncf.model.filepath. A name may have directories. A layer without a name is left out.
//   - A name that leads out of the directory, that is absolute, or that two layers have, is refused
//     by [Files], before a byte of a layer is fetched. So is a file below another file.
//   - A layer is a file as it is in the registry: an archive is not opened. There are no links and
//     no devices, and the mode of each file forbids to write to it and to execute it.
//   - A blob is not copied where the file system has reflinks, or hard links to it: see [Place].
//   - A file that has changed since it was laid out is found: see [Check].
//
// # Never
//
// It does not speak to containerd, and mounts nothing: package imagestore does.
package artifact
