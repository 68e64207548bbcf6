// SPDX-License-Identifier: Apache-2.0

// Package node is a node to be tested: the built berth as its own process, spoken to over its
// socket, with a containerd inside or beside it, and with directories, a bridge, a subnet and a
// cgroup parent of its own.
//
// # Use
//
//	n := node.Start(t, node.Options{})
//	pod, id := n.Sh("exit 42")
//	node.ExpectExit(t, n.Ended(id), 42, "Error")
//
// # What it promises
//
//   - Every error fails the test: without root, or without the output of `make tools build`, it
//     does not skip.
//   - At the test's end all pods are removed, berth and containerd are stopped, and everything that
//     they could have left is looked for: see leaks.go. A leak fails the test, is named, and is
//     removed.
//   - Nothing waits for ever. A call without a deadline, and the end of a process, have minutes; a
//     test has half of the time that go test leaves it. A longer wait fails the test with the cause
//     of the delay in berth (berth debug lanes), and ends berth, whose log has its goroutines: see
//     hang.go.
//   - Several nodes may run side by side, also from several test binaries.
//
// # To look at it live
//
// A test that fails prints berth's log. Node.Dir holds everything else while the test runs.
package node
