// SPDX-License-Identifier: Apache-2.0

// Package doctor examines a machine for anything that keeps berth from working well on it, and
// gives remedies.
//
// # Promises
//
//   - Each check gives one of four answers: nothing is wrong; findings, each with the fault and the
//     remedy; that its subject does not exist on the machine; or that it could not ask, and why. A
//     check that could not ask is never taken for a good or a bad result.
//   - No check waits for another one, and each has a deadline: a disk that hangs costs its own
//     answer alone.
//   - It needs no berth that runs. With one it reads the settings that berth uses, and asks it for
//     more.
//
// # Never
//
// A check changes nothing but that it writes a small file into berth's directories, to measure how
// long the disk takes, and removes it.
//
// # Use
//
// [Examine] asks everything of a [Host]. [Machine] is the one that the process runs on; a test
// describes another one in a directory. The checks are in one table, in checks.go. The other files
// have the questions: kernel.go, cgroups.go, kubelet.go, cni.go, handlers.go, disk.go, ports.go,
// unit.go, leftovers.go, certificates.go and service.go.
package doctor
