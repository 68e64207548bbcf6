// SPDX-License-Identifier: Apache-2.0

// Package doctor reads a machine and says what keeps berth from working well on it, and what to do
// about that.
//
// # Promises
//
//   - Each check gives one of four answers: nothing is wrong; findings, each of which says what is
//     wrong and what to do; that the machine does not have what it asks about; or that it could not
//     ask, and why. What could not be asked is never taken for well, nor for wrong.
//   - No check waits for another one, and each has a deadline: a disk that hangs costs its own answer
//     alone.
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
// have what they ask: kernel.go, cgroups.go, kubelet.go, cni.go, handlers.go, disk.go, ports.go,
// unit.go, leftovers.go, certificates.go and service.go.
package doctor
