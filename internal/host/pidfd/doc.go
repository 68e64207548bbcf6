// SPDX-License-Identifier: Apache-2.0

// Package pidfd watches the init processes of containers and pod sandboxes through pidfds, and owns
// the identity of a process. Through it the kernel is a witness of exits, for every runtime whose
// init is a process of this host, even if the shim and containerd are dead.
//
// # Three answers
//
// A question about a process has three answers: the process is alive, it is gone, or the kernel
// could not be asked, because the question itself failed (EMFILE, ENFILE, ENOMEM, EIO, EACCES,
// ...). Only listed errors mean "gone": ESRCH, and of pidfd_open also ENOENT and EINVAL, which mean
// that the number belongs to a thread now. [ErrGone] stands for them. Other errors prove nothing:
// berth does not end, forget or report a process because of them, and keeps the measurements of
// other witnesses. A witness that cannot speak has no veto.
//
// So that there is one such list, every question of berth's about a process passes through this
// package: pidfd_open, /proc/PID/stat and the ID of the boot are read here and nowhere else.
//
// For a process that was killed and has not ended, [HeldBy] finds the reason, and [KillNamespace]
// kills all processes that would end with it.
//
// # Two codes
//
// The kernel has two codes of one end, and tells each witness one of them. The parent is told the
// code of the process, and /proc/PID/stat shows the same as long as the process is a zombie. After
// it was reaped, a pidfd has the code of its first thread, and only the parent has the other one.
// The two are the same unless
//
//   - reboot(2) ended a PID namespace: the parent of its init is told SIGHUP (a restart) or SIGINT
//     (a halt, or the power off). The first thread has ended with 0 if it made the call, and else
//     by SIGKILL;
//   - the first thread leaves by itself (exit(2), which pthread_exit(3) calls, or seccomp's
//     SECCOMP_RET_KILL_THREAD) in the instant in which another one ends the process. If it leaves
//     before, the kernel gives it the code of the process.
//
// That a core was dumped may also be in one of the two alone, and is not a part of an exit code.
// The stat of a zombie that is reaped while it is read has the code of the first thread as well.
// The kernel counts no threads in it then, and it is not taken. TestEachWayToEndHasOneCode has the
// whole table, for a kernel that answers otherwise.
//
// A fact records which of the two codes it has ([exit.Fact.FirstThread]).
//
// # Use
//
//	w, err := pidfd.New(keeper, inherited)
//	go w.Run(ctx, sink)                // owns the loop
//	p, err := w.Watch(id, p)           // after the process was made, before it is started
//	...                                // sink gets an exit.Fact when it ends
//	w.Forget(id)                       // after what it held was released
//
//	fd, err := pidfd.Open(pid)         // for a process that is not watched
//	err = pidfd.Send(fd, sig)          // reaches it, and no later one with the same pid
//
// # Promises
//
//   - A process that lives is not reported as ended, and a process that was given the pid of an
//     earlier one is not taken for it: an identity is the pid, the start time and the boot.
//   - The sink gets a fact as soon as a process ended, and a measured one as soon as the kernel can
//     tell the code: from the zombie, or on Linux 6.15 and later, for its first thread, from the
//     pidfd after the process was reaped. If the kernel cannot tell, the fact is not measured. An
//     ID has at most one measured fact, and no fact follows it.
//   - Watch, Forget, Signal and Look do not wait for the loop, and the loop does not wait for them
//     or for the sink, which must not block.
//   - A pidfd that an earlier berth left is closed only when its process is known, or known to be
//     of no interest, because the pidfd may have the exit code.
//   - A copy of a descriptor that is kept elsewhere (package fdstore) does not wake the loop once
//     the process is not watched any more.
//
// # Never
//
// It decides nothing: package exit chooses between facts, and package pod acts on the chosen one.
// It writes no log. The other witnesses live elsewhere: the task (containerd's Wait) and the event
// stream in package ctrd, the audit in package pod.
//
// # To look at it live
//
// ls -l /proc/$(pidof berth)/fd | grep pidfd: one for each process that is watched. The fdinfo of
// each has the pid.
package pidfd
