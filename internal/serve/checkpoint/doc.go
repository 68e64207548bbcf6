// SPDX-License-Identifier: Apache-2.0

// Package checkpoint writes checkpoints of running containers: the state of their processes, as
// CRIU dumps it, the changes in their root filesystem, and the container's description, in one
// archive. It also reads such archives, for containers that are restored from them. A checkpoint of
// a pod is a directory with an archive of each of its containers.
//
// # The archive
//
// It is a tar with the names that containerd, CRI-O and Podman use, so that checkpointctl reads it:
//
//	config.dump       JSON: names, image, instants
//	spec.dump         JSON: the OCI specification
//	status            JSON: the state as containerd writes it
//	status.dump       JSON: the status as CRI has it
//	checkpoint/       CRIU's images of the processes
//	dump.log          CRIU's log, and stats-dump its statistics
//	rootfs-diff.tar   the changes in the writable layer
//	container.log     the log so far
//
// The directory of a pod has ID.tar for each container, and pod.json: the requested configurations
// of the pod and its containers.
//
// # Promises
//
//   - The container goes on. It is paused while its processes and its files are read, so that they
//     belong together. Before it is paused, a directory with its ID notes that; a berth that finds
//     such a directory lets the container go on, and removes it ([Service.Run]). A failed pause may
//     have frozen processes, and is undone after any error.
//   - The containers of a pod are read as they are at one instant: all are paused before the first
//     is read, and none goes on before the last one was.
//   - The archive appears complete or not at all: it gets its name when all of it is on disk. It is
//     a new file that root alone can read. A file, a directory or a symbolic link that has the name
//     already is an error, and is left alone.
//   - A checkpoint ends with its timeout, with its caller, with its container, and as soon as a
//     stop or the removal of the container is asked for. One checkpoint of a container is made at a
//     time.
//   - Without CRIU, it returns an error that names CRIU. Nothing is left then.
//   - A pod is restored with all its containers, or not at all: one that cannot be made as a whole
//     is removed, by the next berth if this one is killed ([Restorer.Run]). It is made like any
//     other pod, once the request was compared with the checkpoint.
//   - An archive is not trusted: its size, its names, its links and the files for CRIU are checked
//     before anything is written, and only into a directory that is given.
//   - An archive that comes from an image ([Archives.Receive]) is a file without a name for as long
//     as it is needed. It is refused if one of its processes may do more than the container that is
//     made for it: confine.go.
//
// # Never
//
// It does not restore processes: package pod makes a container from the files that [Archives] has
// unpacked, and its start restores them. The mounts, limits and namespaces in an archive are
// ignored, and so are the privileges in an archive of root's.
//
// # To look at it live
//
// A directory below checkpoints/ in berth's root directory is a checkpoint of a container that is
// being made, and a file below restored-pods/ a pod that is.
package checkpoint
