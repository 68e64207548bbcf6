// SPDX-License-Identifier: Apache-2.0

// Package pidfd holds the witnesses of an exit: independent sources that say that the
// process of a container or pod sandbox ended.
//
//	Kernel   a pidfd per process, one epoll loop for all: speaks for runtimes whose init is
//	         a process of this host, whatever became of the shim or of containerd
//	Task     containerd's Wait, one call per task: the shim's own word
//
// The event stream and the audit are witnesses too; their reading of containerd lives in
// package ctrd and their comparison with the records in package pod, since both see
// more than exits. All of them emit [exit.Fact]s into one sink and know nothing of each
// other; package exit says whose word stands.
//
// # Promises
//
//   - The kernel witness never reports a process that still lives, nor takes a reused
//     pid for the recorded one: identity is pid, start time and boot.
//   - It reports that a process ended as soon as it did, and which code it ended with as soon
//     as the kernel can say: from the zombie, or on Linux 6.15 and later from the pidfd
//     after it was reaped. If the kernel cannot say, the fact is unmeasured.
//   - Watch, Forget and Signal never wait for the loop, and the loop never waits for the sink:
//     a sink must not block.
//
// # Never
//
// A witness settles nothing and holds no state about what was already told.
package pidfd
