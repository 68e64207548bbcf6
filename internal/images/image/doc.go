// SPDX-License-Identifier: Apache-2.0

// Package image serves images: it lists them from memory, pulls, imports, unpacks and removes them,
// and follows changes that other clients make in containerd.
//
// # Promises
//
//   - List, Status, Resolve and Name answer from memory.
//   - One pull for each image and credentials, however many ask, and one unpacking for each image.
//     It ends when everybody who asked has gone. A pull also ends when no byte has come for
//     [Config].PullTimeout while nothing was unpacked, and the unpacking of an image, or of a layer
//     in a pull, after [Config].UnpackTimeout.
//   - Progress and Transfers say in bytes how far a pull has come, and cost the pull nothing.
//   - A pull that the [Policy] refuses asks its registry for nothing but the target of the name,
//     and for that only if the policy wants to know it. Pulls that have to pass something are
//     shared with those that have to pass the same.
//   - Credentials go to the registry that they are for and to no other. An error names no
//     credentials: it cuts off each URL behind its path.
//   - An OCI artifact is listed, pulled, pinned and removed as an image is. The ID of an artifact,
//     and of a checkpoint, is the digest of its manifest.
//   - An image's names are those that the ecosystem reads: its tag, its digest and its ID. A name
//     is looked up once: each decision about it is carried out with the digest that it had then.
//     One that has the digest of another image, or is not complete, is not used: see [Name].
//   - An image is reported as pinned if pods need it besides those of their containers, if the
//     configuration names it, if it came from an archive of [Preload], or if it has containerd's
//     label. As CRI has it, that is a recommendation to garbage collectors: Remove removes a pinned
//     image, too, and Prune leaves it.
//   - An archive of [Preload] that is bad, or takes long, delays nothing but the pulls of its own
//     images. A question that failed is not taken for an answer: an archive is not bad because
//     containerd is away, and not gone because its directory cannot be read.
//   - Details and Prune count as freed by an image only the bytes that no other image and no
//     container needs.
//   - The size of each part of an image is bounded before it is read or kept.
//   - Measuring the disk usage of images delays nothing else.
//
// # Never
//
// It does not speak to containerd itself: [Backend] does.
package image
