// SPDX-License-Identifier: Apache-2.0

// berth-logger keeps the pipes of one container's output alive while berth is
// away. The shim starts it (a containerd logging URI, binary://) with the read
// ends of stdout and stderr as descriptors 3 and 4. It copies nothing: it
// listens on a socket in the container's stdio directory and hands duplicates
// of both descriptors to the berth that connects. While no berth holds them,
// the output waits in the pipes, and then the container waits.
//
//   berth-logger io DIRECTORY
//
// berth starts another one with the same descriptors when this one is killed.
//
// The protocol, on a SOCK_SEQPACKET socket named "logger" in DIRECTORY: upon a
// connection the logger sends one byte with both descriptors (SCM_RIGHTS). A
// byte from berth says that it needs the logger no more. When a connection
// ends without one, the logger waits for the next berth.
//
// It ends when berth says so, and by itself when every writer has gone and
// nothing is left in the pipes. The shim sends SIGTERM when the task is deleted,
// and waits for the end of the process that it started: should there still be
// something to keep, a child of that process goes on keeping it.
//
// Built static, and small: each container has one.
//
// It is a trick: it relies on a shim's handing a logging program the read ends of
// the container's own pipes, and not a copy of the output. berth's setting
// tricks.keep_output turns it off. Delete when a shim keeps the pipes itself and
// gives them to whoever asks.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { PIPES = 3, READY = 5 };

// PIPE_SIZE is how much output may wait in each pipe.
enum { PIPE_SIZE = 256 << 10 };

// unread reports whether either pipe holds output.
static int unread(void) {
  for (int i = 0; i < 2; i++) {
    int n = 0;
    if (ioctl(PIPES + i, FIONREAD, &n) == 0 && n > 0)
      return 1;
  }
  return 0;
}

// serve listens on the socket in the current directory. The directory is for
// root alone, and so is the socket.
static int serve(void) {
  struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "logger"};
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return -1;
  umask(0177);
  if (bind(fd, (struct sockaddr *)&name, sizeof name) != 0 || listen(fd, 1) != 0)
    return -1;
  return fd;
}

// give accepts a connection and sends the descriptors over it. It returns the
// connection, or -1 when the peer is not this user or is gone already.
static int give(int listener) {
  int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0)
    return -1;
  struct ucred peer;
  socklen_t size = sizeof peer;
  char byte = 'p';
  struct iovec data = {.iov_base = &byte, .iov_len = 1};
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(2 * sizeof(int))];
  } control;
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  memset(&control, 0, sizeof control);
  struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(2 * sizeof(int));
  memcpy(CMSG_DATA(rights), (int[]){PIPES, PIPES + 1}, 2 * sizeof(int));
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != geteuid() ||
      sendmsg(fd, &message, MSG_NOSIGNAL) != 1) {
    close(fd);
    return -1;
  }
  return fd;
}

// drop gives up every capability, for good: keeping pipes open needs none. A failure changes nothing
// for the container, and so is not an error.
static void drop(void) {
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};
  (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  (void)syscall(SYS_capset, &header, none);
}

int main(int argc, char **argv) {
  if (argc < 3 || strcmp(argv[1], "io") != 0)
    return 2;
  prctl(PR_SET_NAME, "berth-logger", 0, 0, 0);

  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
    return 1;
  int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0 || chdir(argv[2]) != 0)
    return 1;
  int listener = serve();
  if (listener < 0)
    return 1;
  for (int i = 0; i < 2; i++)
    (void)fcntl(PIPES + i, F_SETPIPE_SZ, PIPE_SIZE); // the usual size will do, too
  drop(); // a large pipe may need one
  close(READY);

  struct pollfd wait[] = {
      {.fd = signals, .events = POLLIN}, {.fd = listener, .events = POLLIN}, {.fd = -1, .events = POLLIN},
      {.fd = PIPES, .events = 0},        {.fd = PIPES + 1, .events = 0},
  };
  struct pollfd *berth = &wait[2];
  for (;;) {
    if (poll(wait, sizeof wait / sizeof *wait, -1) < 0) {
      if (errno == EINTR)
        continue;
      return 1;
    }
    // A pipe without writers stays readable to its end, and would keep poll from waiting.
    for (int i = 3; i < 5; i++)
      if (wait[i].revents != 0)
        wait[i].fd = -1;
    if (berth->revents != 0) {
      char byte;
      if (recv(berth->fd, &byte, 1, 0) > 0)
        break;
      close(berth->fd);
      berth->fd = -1;
    }
    if (wait[1].revents != 0) {
      int fd = give(listener);
      if (fd >= 0) { // a berth that connects comes after the one that was there
        if (berth->fd >= 0)
          close(berth->fd);
        berth->fd = fd;
      }
    }
    if (wait[3].fd < 0 && wait[4].fd < 0 && !unread())
      break;
    if (wait[0].revents != 0) {
      struct signalfd_siginfo info;
      (void)!read(signals, &info, sizeof info);
      if (fork() > 0)
        return 0;
    }
  }
  unlink("logger"); // a berth that comes back knows by this that nothing is missing
  return 0;
}
