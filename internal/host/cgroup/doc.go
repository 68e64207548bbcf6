// SPDX-License-Identifier: Apache-2.0

// Package cgroup reads control groups, on cgroup v1 and v2, and ends the processes in them: which
// group a process is in, how often the OOM killer fired in a group, how to leave no process in it,
// and how to let frozen processes run on. It makes the groups of programs that berth starts for a
// while, such as CNI plug-ins ([Groups]).
//
// # Promises
//
//   - A group is named by its directory, which [Of] finds for a process. Nothing is guessed about
//     cgroup drivers and slices.
//   - An absent group has no processes, and ending or removing it succeeds.
//   - A verdict is not made up: [OOMKills] returns errdefs.ErrNotFound, not 0, for a group that has
//     no counter any more.
//   - [KillAll] returns nil only after it saw the group empty. A group that cannot be looked into
//     is an error, and not empty.
//   - A process that was killed ends even if it is frozen: [Force] and [KillAll] thaw its groups.
//   - The root group is refused everywhere.
//   - A program is in its group of [Groups] before its first instruction, and so is all that it
//     starts. The next berth can tell a run that was cut off, and ends it, from a run that
//     finished, and leaves its processes alone.
//
// # Never
//
// It does not make or move the groups of containers: the OCI runtime does. It removes a container's
// group only if the runtime died and left it ([RemoveAll]). The groups of scopes are removed by
// systemd at its request.
//
// # To look at it live
//
// cat /proc/PID/cgroup, and below /sys/fs/cgroup the files cgroup.procs and memory.events (v2) or
// memory.oom_control (v1). Groups of berth's own are named berth-*, and are in the unified
// hierarchy below berth.service, or below the root where systemd did not start berth.
package cgroup
