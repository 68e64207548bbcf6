// SPDX-License-Identifier: Apache-2.0

// Package join runs programs in containers of runc and of crun without these: the program
// berth-exec (join/exec.c) joins the container and executes the program. An exec through the shim
// starts three processes, one of which is written in Go and starts itself anew; a probe every
// second costs more than the command it runs.
//
// It is a trick, which a handler's setting exec = 'oci' turns off: it relies on the behaviour of
// runc 1.5, crun 1.21 and crun 1.28 in an exec. Delete it when an OCI runtime joins a container in
// less than a fifth of the time that it takes now.
//
// # How
//
//	Prepare   the specification, the filter, the groups, a null device → a [Plan], or a [Refusal]
//	Start     fork berth-exec, the maker → its child joins, and makes and names a child of the
//	          maker's → that one is noted, and goes on → its end of the socket closes, and its name
//	          changes: the program is executed
//	Wait      the maker reaps it, and reports its code
//	Left      the maker has reaped all its children, and has ended
//
// The files: plan.go decides which requests are covered, runtime.go which OCI runtimes, and how
// crun differs from runc, seccomp.go makes filters, groups.go finds cgroups, null.go makes null
// devices, start.go is the life of one process, and maker.go that of its parent.
//
// # Promises
//
//   - A program finds the same as after an exec of its OCI runtime: test/exec compares both,
//     field by field. crun makes two exceptions: it leaves a process the OOM score and the session
//     keyring of the shim, where berth-exec gives it the score of its container and a keyring of
//     its own; and crun 1.21 gives the host's null device, if that is stdin, to the user.
//   - A request that is not covered exactly is refused with a reason before any program of the
//     container has run. The caller then uses the OCI runtime. That holds for errors, too: the OCI
//     runtime reports a program that is missing, or a directory, in its own words.
//   - An end that was not seen does not count as a success: a program was executed once its process
//     has another name than the random one that berth-exec has given it.
//   - No descriptor of the host's is open when the program runs, besides its standard streams.
//   - berth-exec is executed from a sealed copy in memory, which cannot be written to. Tracing it
//     needs CAP_SYS_PTRACE, and it opens nothing by a path of the container's.
//   - berth-exec has the container's OOM score and is in its groups before it joins a namespace,
//     and is in no group of the container's while berth's thread waits for it.
//   - Each of its processes is reaped, even if it was killed, or if berth was told nothing of it,
//     and so is every child that a program makes for its own parent, because a container does not
//     end while its PID namespace has an unreaped process.
//   - The parent of a program is not in the container, and a program that does not see processes
//     outside of it cannot signal or trace it.
//   - The standard input is not a file of the host's, because root in a container may change a file
//     that it has a descriptor of.
//   - A process is noted before it executes the program, so that the next berth can end the
//     processes of a killed one.
//
// # Never
//
// This package reads no image and no file of a container, and asks no shim. Of crun's records it
// reads the filter, for which crun compiles a profile once, when it makes the container.
//
// # To look at it live
//
// berth_execs_total counts processes by the way that they went; with log.level = 'debug' the log
// has the reason of each that did not go this one.
package join
