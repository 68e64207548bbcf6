// SPDX-License-Identifier: Apache-2.0

// pause is the first process of a pod: it holds the pod's namespaces and, where
// the pod shares one PID namespace, is its init. It waits, reaps every child
// that ends, and ends itself with 0 on SIGTERM or SIGINT. `pause -v` prints its
// version.
//
// Built static, because the root file system it runs on holds nothing else.

#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef VERSION
#define VERSION "dev"
#endif

static int complain(const char *what) {
  fprintf(stderr, "pause: %s: %s\n", what, strerror(errno));
  return 1;
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "-v") == 0)
    return puts("pause " VERSION) < 0 || fflush(stdout) != 0;

  // The signals are blocked and taken one by one with sigwaitinfo, not handled:
  // with a handler there is an instant between looking and waiting in which one
  // could get lost. The kernel delivers a blocked signal to the init of a PID
  // namespace even though it has no handler (it drops unblocked ones:
  // pid_namespaces(7)). SIGCHLD must not be ignored either, whatever the
  // parent left: an ignored SIGCHLD is not queued.
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
    return complain("block signals");
  if (signal(SIGCHLD, SIG_DFL) == SIG_ERR || signal(SIGTERM, SIG_DFL) == SIG_ERR ||
      signal(SIGINT, SIG_DFL) == SIG_ERR)
    return complain("reset signals");

  // A name that ps, and the log of the OOM killer, can tell from others.
  prctl(PR_SET_NAME, "pause", 0, 0, 0);

  for (;;) {
    // First reap, then wait: a child may have ended before the block.
    // Signals are not queued, so one SIGCHLD may stand for many children.
    pid_t pid;
    do
      pid = waitpid(-1, NULL, WNOHANG);
    while (pid > 0 || (pid < 0 && errno == EINTR));

    switch (sigwaitinfo(&set, NULL)) {
    case SIGTERM:
    case SIGINT:
      return 0;
    case SIGCHLD:
      break;
    default:
      if (errno != EINTR && errno != EAGAIN)
        return complain("wait for a signal");
    }
  }
}
