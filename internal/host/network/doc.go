// SPDX-License-Identifier: Apache-2.0

// Package network connects pods to networks with CNI. Package pins makes their namespaces.
//
// # Promises
//
//   - Teardown uses the configuration that Setup used, even if the directory changed since, and
//     works when the namespace is gone.
//   - The configuration directory is followed while berth runs, by polling where the kernel has no
//     inotify instance left. The lexically first valid configuration wins; an invalid file is
//     skipped and reported in the log. If there is none, berth uses a bridge of its own, and its
//     log reports that. Its pods share one rule that masquerades, and once a port is published two
//     that keep them from the host's loopback. A runtime handler may have a directory of its own.
//   - A pod that is connected has an address by which others reach it. Its sysctls are set
//     afterwards: SetSysctls takes the result of Setup.
//   - Rules of that bridge and of its pods' host ports that another program removes are added again:
//     the kernel is asked every five seconds whether rules have changed. For a network of another
//     program the plug-ins are asked (CHECK), and a loss is reported. A rule is removed from the
//     firewall in which it was made, legacy or nf_tables, although the host's iptables may write into
//     the other one by then.
//   - The plug-ins of a network of CNI 1.1 are asked in the background whether they are ready
//     (STATUS), and Status has the last answer: an error of a plug-in counts at once, and silence
//     when it lasts.
//   - Each call of a plug-in runs in a cgroup of its own. A call finishes when the plug-in exits by
//     itself; the processes that it leaves, such as a daemon for all pods, live on. A call is cut
//     off when its context ends, by a signal that ends the plug-in, or by a kill of berth. The
//     plug-in then has a second to finish its step, from the start of the next berth if berth was
//     killed. Its remaining processes are then killed, and the pod is not disconnected before. A
//     call whose group cannot be made is not started. On a kernel that cannot start programs in a
//     cgroup, calls have no groups, which berth's log reports, and the processes that a call leaves
//     are not ended, because their origin is unknown.
//
// # Never
//
// It knows only the names of pods, writes no record of them, and runs no shell: the fields of a pod
// reach plug-ins as CNI arguments only. It does not trust /proc about other
// processes.
//
// # To look at it live
//
// `ip netns`, `berth status -o json`, and the cgroups named berth-cni-*, each of which exists while
// a call or a process that it left runs.
package network
