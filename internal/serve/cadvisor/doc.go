// SPDX-License-Identifier: Apache-2.0

// Package cadvisor serves the cAdvisor in the kubelet, which measures containers itself unless the
// kubelet takes statistics from CRI.
//
// # What cAdvisor does
//
// It follows the directories of cgroups. If one has the ID of a container in its name, it asks a
// containerd, at a path that is known to it, for the container's labels and for the process ID of
// its task, once. It counts the network where the label io.cri-containerd.kind is sandbox, in
// /proc/PID/net/dev.
//
// # What the package does
//
// It answers these questions on a socket of its own: Get of containers, Get of tasks, and the
// version. Everything else that a containerd can do is not there. The answers come from the
// records. They have labels, an image and a process ID, and neither the environment nor the mounts
// of a container. A symbolic link leads to the socket from where cAdvisor looks for it. If the link
// cannot be made, since something else is there, nothing is served and nothing made.
//
// A pod without a process has no cgroup of its own and no process ID. For such a pod an empty
// cgroup is made below the pod's, with the ID of the sandbox in its name. The process ID is that of
// a thread of the pod's shim that waits in the pod's network namespace. When the shim has died, the
// cgroup is removed. It is made again when the pod has another shim, so that cAdvisor asks again.
//
// # What it promises
//
//   - No call waits for it: [Service.Look] does not block, and all work is done by [Service.Run].
//     Failures are retried within a minute.
//   - Each cgroup is on record, as a file below berth's volatile state, before it is made. It is
//     removed once its sandbox is not READY any more, also if berth was killed meanwhile. A reboot
//     removes both.
//   - A process ID answered for a pod without a process belongs to a thread that was in the pod's
//     network namespace when cAdvisor asked. When that thread has gone, its ID may be reused: this
//     is noticed when something happens to the pod, or within a minute.
package cadvisor
