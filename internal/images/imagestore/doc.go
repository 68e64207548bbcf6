// SPDX-License-Identifier: Apache-2.0

// Package imagestore is containerd's image store. A [Store] pulls, imports and unpacks images,
// reads their files and measures them.
//
// # Promises
//
//   - An image whose layers were unpacked beside each other is the same as one that was unpacked
//     layer by layer.
//   - A layer is unpacked while it arrives. It counts after its blob and its files have the right
//     digests, and is gone if one of them has not.
//   - A server that sends wrong bytes of a blob is not asked for it again in that pull, and the next
//     one is.
//   - Memory use is bounded regardless of the sizes that registries and layers declare, and a
//     panic over one ends that call alone.
//   - A name is never read again to find out what it stands for: what is pulled, unpacked,
//     restored, repaired or removed is what the caller has in hand.
//   - Credentials and keys go to the registry and to the layer that they are for.
//   - An image gets its names when it can be used: its parts are there and its layers unpacked. A
//     pull or an import that fails has changed no name. Of an archive the images of this node's
//     platform are taken, and those that name none.
//   - An artifact is laid out by the rules of package artifact in a layer of its own, which the
//     views of containers keep, which is made again from the blobs if it is lost, and which goes
//     with its name. One that cannot be laid out is refused before its layers are fetched.
//   - Links in an image lead to no file outside it, and opening its files acts on no device.
//   - A lease keeps what a call has containerd make until the call has ended. What a berth that was
//     killed has left is removed by [Store.Sweep] and by [New].
//   - What a pull that was cut off had fetched is kept for ten minutes for the next one of the same
//     name. It has a share of the disk, and goes when the disk has no room for it. Any other
//     failure gives the space back at once, also if the disk was full.
//   - Blobs come from the registry, its mirrors and peers alone, whatever other servers a manifest
//     names, and no credentials go along when a server sends a request to another one.
//   - Peers are asked for blobs by digest, once the registry has said what a name stands for. What
//     they send wrong, late or not at all fails no pull: the registry sends it.
//   - Peers are given what an image of the repository that they name consists of, and nothing that
//     is doubted after a power cut.
//   - What is made carries the label connection.LabelOwner.
//
// # Never
//
// It does not decide which images to keep, and knows their names as containerd does: package image
// has the list that clients see. It starts no container.
//
// # Looking at it live
//
//	ctr --address /run/berth/containerd/containerd.sock -n k8s.io images ls
//	ctr --address /run/berth/containerd/containerd.sock -n k8s.io leases ls
//
// # Parts
//
// [New] puts a [Store] together from parts, each of which knows those below it alone:
//
//	Puller        pulls, imports and unpacks: pull.go, archive.go, peers.go
//	Verifier      compares images with their digests and indexes: verify.go, mend.go
//	unpacker      unpacks an image by containerd's client: unpacker.go, parallel.go, arriving.go
//	Reader        the disk, and the content of images: contents.go, usage.go, sampler.go,
//	              imageroot.go, volumes.go, checkpoints.go
//	served        decides which blobs other nodes are given: served.go
//	Durability    waits until a layer can be relied on: durability.go
//	repairer      unpacks a layer again, or removes it: repair.go
//	imageLayers   where the layers of images are, and their marks: imagelayers.go, remove.go
//	artifacts     lays artifacts out in layers: artifacts.go
//	views         views of images for berth itself: views.go
//	jobs          the leases of pulls and imports: jobs.go, resume.go
//	Names         names and their targets: names.go, sources.go, manifest.go, imageconfig.go
//	registries    how registries are reached: registries.go, senders.go, ranges.go, waiting.go,
//	              redirect.go, documents.go
//	keys          private keys for encrypted layers: decrypt.go
//	core          the connection and the settings: core.go, bounded.go, early.go
//
// The reader, the puller, the layers and the repairer alone would not do: the keeper of marks needs
// the repairer, and each unpacking or view of an image waits for the keeper. So the repairer, which
// unpacks a layer by itself, is below, and the Verifier, which also unpacks whole images, is above.
// No file calls one whose part is above its own.
package imagestore
