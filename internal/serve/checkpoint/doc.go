// SPDX-License-Identifier: Apache-2.0

// Package checkpoint writes checkpoints of containers that run: the state of their processes, as
// CRIU dumps it, what they changed in their root filesystem, and the container's description, in
// one archive. It also reads such archives, for containers that are restored from them. A
// checkpoint of a pod is a directory with an archive of each of its containers.
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
//	rootfs-diff.tar   what the writable layer has changed
//	container.log     the log so far
//
// The directory of a pod has ID.tar of each container, and pod.json: what the pod and its
// containers were asked for with.
//
// # Promises
//
//   - The container goes on. It is paused while its processes and its files are read, so that they
//     belong together. Before it is paused, a directory with its ID says so; a berth that finds
//     such a directory lets the container go on, and removes it ([Service.Run]). A pause that was
//     asked for and failed may have frozen processes, and is undone whatever the error says.
//   - The containers of a pod are read as they are at one instant: all are paused before the first is
//     read, and none goes on before the last one was.
//   - The archive is complete, or it is not there: it gets its name when all of it is on disk. It
//     is a new file that root alone can read. A file, a directory or a symbolic link that has the
//     name already is an error, and is left alone.
//   - A checkpoint ends with its timeout, with its caller, with its container, and as soon as a
//     stop or the removal of the container is asked for. One checkpoint of a container is made at a
//     time.
//   - Without CRIU the error says so. Nothing is left then.
//   - A pod is restored with all its containers, or not at all: one that cannot be made as a whole is
//     removed, by the next berth if this one is killed ([Restorer.Run]). It is made as any other pod,
//     once what is asked for was compared with the checkpoint.
//   - An archive that is read is believed in nothing: its size, its names, its links and what CRIU
//     needs are checked before anything is written, and only into a directory that is given.
//   - An archive that comes from an image ([Archives.Receive]) is a file without a name for as long as
//     it is needed. It is refused if one of its processes may do more than the container that is made
//     for it: confine.go.
//
// # Never
//
// It does not restore processes: package pod makes a container of what [Archives] has unpacked, and
// its start restores them. What an archive says of mounts, limits and namespaces is not read, nor what
// one of root's says of privileges.
//
// # To look at it live
//
// A directory below checkpoints/ in berth's root directory is a checkpoint of a container that is
// being made, and a file below restored-pods/ a pod that is.
package checkpoint
