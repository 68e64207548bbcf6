// SPDX-License-Identifier: Apache-2.0

// Package drill breaks things around a container of its own on a running berth, and measures how
// long it takes until everyone knows: berth doctor --drill.
//
// # Promises
//
//   - It touches no pod but its own. A process is signalled through a pidfd, after its cgroup, or
//     the ID in its command line, has shown to which container it belongs. If that cannot be told,
//     the step is not tried.
//   - It leaves nothing: pods, the cgroup above them, the image unless it was there, and files are
//     removed even if a step fails or the drill is interrupted, and it looks whether they are gone.
//     It names the things that it could not remove, or not look for.
//   - It ends within a minute, even if something hangs.
//   - A step that could not be tried is neither a success nor a failure, and has a reason.
//
// # Never
//
// It needs no network, no registry and no CNI: the pod has the network of the host. berth is
// restarted only if that is asked for, and only by systemd.
//
// # Files
//
// drill.go has the drill, steps.go the things that are broken, canary.go the program in the
// container, image.go the image, clean.go the removal and the checks afterwards, and exits.go,
// which package demo uses as well, the instants at which exits are seen.
package drill
