// SPDX-License-Identifier: Apache-2.0

// Package podfiles owns the directories and mounts that berth makes on the host for pods: a pod's
// /dev/shm, its hosts, hostname and resolv.conf, the volumes of container images, and the
// directories of stdio. It mounts and unmounts all of them, with one exception: package imagestore
// mounts an image that is a volume, in a directory that this package makes. This package unmounts
// it.
//
// # Layout
//
//	STATE/sandboxes/ID/shm    a tmpfs, the pod's /dev/shm
//	STATE/sandboxes/ID/etc    a small tmpfs: hosts, hostname, resolv.conf
//	STATE/io/ID               stdio of a container; its content belongs to package logs
//	STATE/volumes/ID/N        the Nth image that a container mounts
//	ROOT/volumes/ID/N         the Nth volume of a container's image
//
// # Promises
//
//   - Every file that containers may write to is on a tmpfs with a size of its own: a pod cannot
//     fill the host's runtime directory through its own /etc/hosts.
//   - Making an existing file or directory and removing an absent one succeed, so that both can be
//     repeated after a crash at any point.
//   - Remove unmounts first and never follows a link; it deletes nothing while something is
//     mounted.
//
// # Never
//
// The room does not know sandboxes or containers, only IDs and values. It keeps no state: the
// records list the files that may exist.
package podfiles
