// SPDX-License-Identifier: Apache-2.0

// Package network connects pods to networks with CNI. Package pins makes their namespaces.
//
// # Promises
//
//   - Teardown uses the configuration that Setup used, even if the directory changed since, and
//     works when the namespace is gone.
//   - The configuration directory is followed while berth runs, by polling where the kernel has no
//     inotify instance left. The lexically first valid configuration wins; an invalid file is
//     skipped and reported in the log. Where there is none, a bridge of berth's own is used, and
//     the log says so. Its pods share one rule that masquerades, and once a port is published two
//     that keep them from the host's loopback. A runtime handler may have a directory of its own.
//   - A pod that is connected has an address by which others reach it. Its sysctls are set after
//     that, since SetSysctls takes what Setup returns.
//   - The plug-ins of a network of CNI 1.1 are asked in the background whether they are ready (STATUS), and
//     Status has the last answer: an error of a plug-in counts at once, and silence when it lasts.
//   - Each call of a plug-in runs in a cgroup of its own. A call finishes when the plug-in exits by
//     itself, and what it leaves, such as a daemon for all pods, lives on. A call is cut off when its
//     context ends, by a signal that ends the plug-in, or by a kill of berth. The plug-in has a second
//     then to finish its step, from the start of the next berth if berth was killed. What is left is
//     ended, and the pod is not disconnected before. A call whose group cannot be made is not
//     started. On a kernel that cannot start programs in a cgroup calls have none, berth's log says
//     so, and what a call leaves is not ended, since nothing tells whose it is.
//
// # Never
//
// It knows nothing of pods beyond their names, keeps no record of who has which namespace, and runs
// no shell: what a pod says reaches plug-ins as CNI arguments only. It does not read what /proc
// says of other processes.
//
// # To look at it live
//
// `ip netns`, `berth status -o json`, and the cgroups named
// berth-cni-*, which are there while a call runs and as long as what it left.
package network
