// SPDX-License-Identifier: Apache-2.0

// Package stats measures the resource use of pods and containers, and answers CRI's calls about
// statistics and metrics.
//
// # How it measures
//
//   - CPU, memory, swap, I/O, processes and pressure (PSI) are read from the cgroup that the
//     controller has on record, on cgroup v1 and v2 ([usage.go]). No shim is asked, and no process
//     is started. If the processes of a container are not on this host, as with a virtual machine
//     or gVisor, its cgroup does not describe it, and its shim is asked ([guests.go]), at most once
//     at a time: one that does not answer within a second is left out. Its pod has the figures of
//     the pod's own cgroup, in which the machine is.
//   - The use of a writable layer is sampled in the background ([layers.go]), because it takes a
//     walk through the layer's files. The timestamp of the answer is the time of the sample.
//   - Network interfaces are read inside the pinned network namespace of the pod ([network.go]).
//   - A rate needs two samples. Between calls, the background takes one every ten seconds, so that
//     a first answer has a rate already ([rate.go]).
//   - A node that nobody asks about measures little: a minute after the last call, layers and rates
//     are sampled every five minutes alone, until the next one.
//
// # Promises
//
//   - A call takes no lock that a call about the life of a container waits for. Its own locks are
//     held for no longer than it takes to copy a value or to read a file of the kernel's.
//   - A value that cannot be measured is left out of the answer: it is not zero. A container whose
//     shim hangs is measured like any other one.
//   - Calls for a list of everything, of one kind, share a measurement that begins after they were
//     made ([rounds.go]); of lists with a filter eight are measured at a time. So a hundred clients
//     cost little more than one, and those that wait hold nothing. A measurement that hangs holds
//     up later calls for five seconds.
//   - A list contains the containers that run. [Service.ContainerStats] of one that does not run
//     has its attributes, the last sample of its writable layer if this berth has taken one, and no
//     usage.
//   - Metrics have the names and meanings of cAdvisor's ([descriptors.go]).
//   - Memory and answers are bounded by the number of sandboxes and containers. Of a pod with more
//     than sixteen network interfaces, sixteen are reported, its own among them, and berth's log
//     notes that.
//
// # Never
//
// It changes nothing: no cgroup, no record, no namespace of another thread.
//
// # To look at it live
//
// crictl stats, crictl statsp, crictl metricsp; below /sys/fs/cgroup the directory of the
// container.
package stats
