// SPDX-License-Identifier: Apache-2.0

// Package shims knows the shims of a node as processes, and ends the remains that containerd has
// forgotten: processes, bundles, records of OCI runtimes and control groups. It takes IDs, PIDs and
// directories, and asks containerd nothing.
//
// # Promises
//
//   - Nothing that a pod does keeps berth from releasing another pod. The room remembers which
//     process is the shim of a pod, and reads the arguments of no process that a pod runs: see
//     processes.go.
//   - A process in a pod is not taken for a shim because of its name or its arguments, and is not
//     killed in a shim's place.
//   - A failed search is an error, and not proof of absence.
//   - An object that merely has the name of one of berth's is left alone. A process counts if it is
//     of berth's own user. A directory of bundles counts if it is containerd's by configuration, or
//     by a shim that works there, and no other user can have made or changed it.
//   - [Shims.End] ends the shim of a pod in a second and a little, over as many calls as that
//     takes. A shim that does not end by itself is killed.
//   - A shim that several pods share is ended with the last of them. As long as one stays, nothing
//     in the room ends it, and its death ends no container. A pod joins none that has died, and
//     none if nothing would spare its containers: see [Cleanups.CanSpare].
//   - Ending and removing an absent object succeeds.
//   - Shims and loggers leave the control group of berth's unit, in which they begin.
//
// # Never
//
// It makes no decision about pods: the caller decides that a task or pod is gone. All that it
// remembers is found again after berth was killed. It does not remove files in a root file system
// that is still mounted.
//
// # Looking at it live
//
//	ls -l /proc/$(pidof berth)/fd | grep pidfd
//	ps -e -o pid,args | grep containerd-shim
//	ls /run/berth/containerd/io.containerd.runtime.v2.task/k8s.io
//
// # Files
//
// shims.go has the shim of each pod, groups.go the pods that share one, processes.go the search of
// /proc, left.go and bundle.go the remains of a task, apart.go the way out of berth's own control
// group, and cleanup.go makes deletions faster.
package shims
