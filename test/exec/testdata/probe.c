// SPDX-License-Identifier: Apache-2.0

// probe prints what a process finds out about itself, a line for each thing.
//
//   probe pause    waits for ever
//   probe report   prints and exits with 7
//   probe hold     prints, and waits for ever
//   probe kill     prints, and ends by SIGTERM
//   probe exit     exits with 9
//   probe hunt     tries to trace and to read every process that it does not know, and says what it
//                  has caught before that executes a program of the container's
//   probe slay     kills every process that has not executed a program yet
//   probe thaw FILE  thaws a group after twenty seconds
//   probe leave HOW  leaves processes behind in a way that leave has, and exits with 9
//   probe touch    changes what it can of each file that it has a descriptor of, and exits with 9
//
// It is static, since the root file systems it is run in have nothing else.

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void file(const char *path, int sum) {
  static char b[1 << 20];
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    printf("%s: %s\n", path, strerror(errno));
    return;
  }
  size_t n = 0;
  for (ssize_t got; n < sizeof b - 1 && (got = read(fd, b + n, sizeof b - 1 - n)) > 0;)
    n += got;
  close(fd);
  b[n] = 0;
  if (sum) {
    unsigned long h = 5381;
    for (size_t i = 0; i < n; i++)
      h = h * 33 + (unsigned char)b[i];
    printf("%s: %zu %lx\n", path, n, h);
    return;
  }
  for (char *line = strtok(b, "\n"); line != NULL; line = strtok(NULL, "\n"))
    printf("%s: %s\n", path, line);
}

// magic prints how a file begins whose content is another each time it is read.
static void magic(const char *path) {
  char b[5] = {0};
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? -1 : read(fd, b, 4);
  printf("%s: %zd %s\n", path, n, n < 0 ? strerror(errno) : b[0] == 0x7f ? b + 1 : b);
  if (fd >= 0)
    close(fd);
}

static void call(const char *name, long rc) { printf("%s: %ld %s\n", name, rc, rc < 0 ? strerror(errno) : ""); }

// joins reports whether a process has not executed a program of the container's yet.
static int joins(const char *pid) {
  char path[64], name[17] = {0};
  snprintf(path, sizeof path, "/proc/%s/comm", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return 0;
  ssize_t n = read(fd, name, 16);
  close(fd);
  return n > 3 && strncmp(name, "be:", 3) == 0;
}

static void hunt(int slay) {
  printf("hunting\n");
  fflush(stdout);
  for (;;) {
    DIR *d = opendir("/proc");
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
      int pid = atoi(e->d_name);
      if (pid <= 1 || pid == getpid() || !joins(e->d_name))
        continue;
      if (slay) {
        kill(pid, SIGKILL);
        continue;
      }
      char path[64], to[64];
      const char *what[] = {"mem", "maps", "environ", "auxv", "fd/3", "fd/5", "syscall"};
      for (size_t i = 0; i < sizeof what / sizeof *what; i++) {
        snprintf(path, sizeof path, "/proc/%d/%s", pid, what[i]);
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0 && read(fd, to, 8) > 0 && joins(e->d_name))
          printf("caught: %s\n", path);
        close(fd);
      }
      for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "/proc/%d/%s", pid, i == 0 ? "exe" : "root");
        if (readlink(path, to, sizeof to) > 0 && joins(e->d_name))
          printf("caught: %s\n", path);
      }
      int fd = syscall(SYS_pidfd_open, pid, 0), got = syscall(SYS_pidfd_getfd, fd, 3, 0);
      if (got >= 0 && joins(e->d_name))
        printf("caught: a descriptor\n");
      close(got);
      close(fd);
      if (syscall(SYS_ptrace, 0x4206 /* PTRACE_SEIZE */, pid, 0, 0) == 0) {
        if (joins(e->d_name))
          printf("caught: traced\n");
        syscall(SYS_ptrace, 0x4207 /* PTRACE_INTERRUPT */, pid, 0, 0);
        waitpid(pid, NULL, __WALL);
        syscall(SYS_ptrace, 17 /* PTRACE_DETACH */, pid, 0, 0);
      }
      fflush(stdout);
    }
    closedir(d);
  }
}

// sibling makes a process that is a child of this one's parent.
static pid_t sibling(void) { return syscall(SYS_clone, CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL); }

static _Noreturn void rest(void) {
  for (int fd = 0; fd < 64; fd++)
    close(fd);
  for (;;)
    pause();
}

static int is(const char *how, const char *which) { return strcmp(how, which) == 0; }

// leave leaves processes behind. Those whose way begins with "stay" end with their container alone.
static int leave(const char *how) {
  int held[2];
  if (pipe(held) != 0)
    return 1;
  if (is(how, "a sibling that ends")) {
    for (int i = 0; i < 3; i++)
      if (sibling() == 0)
        _exit(3);
  } else if (is(how, "a sibling that ends later")) {
    if (sibling() == 0) {
      close(held[1]); // until the other end closes with this one's maker
      while (read(held[0], held, 1) > 0)
        ;
      _exit(3);
    }
  } else if (is(how, "stay: siblings")) {
    for (int i = 0; i < 3; i++)
      if (sibling() == 0) {
        if (i > 0)
          setsid();
        if (i > 1)
          sibling();
        rest();
      }
  } else if (is(how, "stay: a sibling that executes")) {
    if (sibling() == 0) {
      for (int fd = 0; fd < 64; fd++)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
      execl("/proc/self/exe", "probe", "pause", NULL);
      _exit(3);
    }
  } else if (is(how, "stay: an orphan")) {
    if (fork() == 0) {
      setsid();
      if (fork() == 0)
        rest();
      _exit(3);
    }
    wait(NULL);
  } else if (is(how, "orphans that end")) {
    for (int i = 0; i < 20; i++)
      if (fork() == 0) {
        if (fork() == 0)
          _exit(3);
        _exit(3);
      }
  } else if (is(how, "stay: vfork")) {
    pid_t self = getpid();
    if (vfork() == 0) { // its parent waits until this one ends or executes
      kill(self, SIGKILL);
      for (int fd = 0; fd < 64; fd++)
        close(fd);
      for (;;)
        pause();
    }
  } else if (is(how, "stay: without a signal")) {
    if (syscall(SYS_clone, 0, NULL, NULL, NULL, NULL) == 0) {
      sibling();
      rest();
    }
  } else if (is(how, "stay: a reaper of its own")) {
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    if (fork() == 0) {
      if (fork() == 0)
        rest();
      _exit(3);
    }
  } else if (is(how, "stay: traced at its exit")) {
    pid_t self = getpid();
    char b;
    if (sibling() == 0) {
      close(held[0]);
      if (syscall(SYS_ptrace, 0x4206 /* PTRACE_SEIZE */, self, 0, 0x40 /* PTRACE_O_TRACEEXIT */) != 0)
        write(held[1], "x", 1);
      rest();
    }
    close(held[1]);
    if (read(held[0], &b, 1) == 1)
      return 1;
  } else if (is(how, "its parent is killed")) {
    if (getppid() > 1)
      kill(getppid(), SIGKILL);
    usleep(100000);
  } else if (is(how, "its parent is stopped")) {
    if (getppid() > 1)
      kill(getppid(), SIGSTOP);
  } else {
    return 1;
  }
  return 9;
}

// touch changes what can be changed of a file by a descriptor of it, and says what could be.
static int touch(void) {
  const struct timespec past[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
  for (int fd = 0; fd < 64; fd++) {
    struct stat s;
    if (fstat(fd, &s) != 0)
      continue;
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    printf("%d: type %o rdev %lx inode %lx:%lu", fd, s.st_mode & S_IFMT, (long)s.st_rdev, (long)s.st_dev, s.st_ino);
    // Changes that harm nobody where they succeed and should not.
    printf(" fchmod %d", fchmod(fd, (s.st_mode & 0777) | S_ISVTX));
    printf(" chmod %d", chmod(path, (s.st_mode & 0777) | S_ISVTX));
    printf(" fchown %d", fchown(fd, -1, 1234));
    printf(" ftruncate %d", ftruncate(fd, 0));
    printf(" futimens %d", futimens(fd, past));
    printf(" fsetxattr %d\n", (int)syscall(SYS_fsetxattr, fd, "trusted.x", "x", 1, 0));
  }
  fflush(stdout);
  return 9;
}

int main(int argc, char **argv) {
  if (argc < 2 || strcmp(argv[1], "pause") == 0)
    for (;;)
      pause();

  if (strcmp(argv[1], "exit") == 0)
    return 9;
  if (strcmp(argv[1], "leave") == 0)
    return leave(argv[2]);
  if (strcmp(argv[1], "touch") == 0)
    return touch();
  if (strcmp(argv[1], "thaw") == 0) {
    sleep(20);
    return write(open(argv[2], O_WRONLY), "0", 1) != 1;
  }
  if (strcmp(argv[1], "hunt") == 0 || strcmp(argv[1], "slay") == 0)
    hunt(strcmp(argv[1], "slay") == 0);

  for (int i = 0; i < argc; i++)
    printf("arg %d: %s\n", i, argv[i]);
  for (char **e = environ; *e != NULL; e++)
    printf("env: %s\n", *e);
  // Descriptors first: what follows opens some.
  for (int fd = 0; fd < 1024; fd++) {
    struct stat s;
    if (fstat(fd, &s) != 0)
      continue;
    printf("fd %d: mode %o owner %u:%u rdev %lx flags %x %x\n", fd, s.st_mode, s.st_uid, s.st_gid, (long)s.st_rdev, fcntl(fd, F_GETFL),
           fcntl(fd, F_GETFD));
  }
  char where[4096];
  printf("cwd: %s\n", getcwd(where, sizeof where) != NULL ? where : strerror(errno));
  mode_t mask = umask(0);
  umask(mask);
  printf("umask: %o\n", mask);
  uid_t r, e, s;
  getresuid(&r, &e, &s);
  printf("uids: %u %u %u\n", r, e, s);
  getresgid(&r, &e, &s);
  printf("gids: %u %u %u\n", r, e, s);
  gid_t groups[256];
  int n = getgroups(256, groups);
  for (int i = 0; i < n; i++)
    printf("group: %u\n", groups[i]);
  printf("leads its session: %d, its group: %d, parent: %d\n", getsid(0) == getpid(), getpgrp() == getpid(), getppid());
  for (int i = 1; i < 65; i++) {
    struct sigaction a;
    if (sigaction(i, NULL, &a) == 0 && a.sa_handler != SIG_DFL)
      printf("signal %d: %s\n", i, a.sa_handler == SIG_IGN ? "ignored" : "handled");
  }
  for (int i = 0; i < 16; i++) {
    struct rlimit l;
    if (getrlimit(i, &l) == 0)
      printf("limit %d: %llu %llu\n", i, (unsigned long long)l.rlim_cur, (unsigned long long)l.rlim_max);
  }
  printf("nice: %d\n", getpriority(PRIO_PROCESS, 0));
  printf("scheduler: %d\n", sched_getscheduler(0));
  call("ioprio", syscall(SYS_ioprio_get, 1, 0));
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  sched_getaffinity(0, sizeof cpus, &cpus);
  printf("cpus: %d\n", CPU_COUNT(&cpus));
  printf("personality: %x\n", personality(0xffffffff));
  call("dumpable", prctl(PR_GET_DUMPABLE));
  call("no_new_privs", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
  call("seccomp", prctl(PR_GET_SECCOMP));
  call("securebits", prctl(PR_GET_SECUREBITS));
  call("keepcaps", prctl(PR_GET_KEEPCAPS));
  call("timerslack", prctl(PR_GET_TIMERSLACK));
  call("subreaper", prctl(PR_GET_CHILD_SUBREAPER, &n));
  n = -1;
  prctl(PR_GET_PDEATHSIG, &n);
  printf("pdeathsig: %d\n", n);
  call("thp", prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
  call("speculation", prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0));
  char key[512];
  long id = syscall(SYS_keyctl, 0 /* KEYCTL_GET_KEYRING_ID */, -3 /* the session's */, 0);
  memset(key, 0, sizeof key);
  if (id > 0 && syscall(SYS_keyctl, 6 /* KEYCTL_DESCRIBE */, id, key, sizeof key - 1) > 0)
    printf("keyring: %s\n", key);
  else
    printf("keyring: %s\n", strerror(errno));
  printf("secure: %ld, file: %s\n", getauxval(AT_SECURE), (char *)getauxval(AT_EXECFN));
  char name[17] = {0};
  prctl(PR_GET_NAME, name);
  printf("name: %s\n", name);

  // What a filter and capabilities let it do.
  call("mount", mount("none", "/proc", "nothing", 0, NULL));
  call("unshare", unshare(0x40));
  call("sethostname", syscall(SYS_sethostname, "x", -1));
  call("mknod", mknod("/dev/no/such", S_IFCHR, 1));
  call("chroot", chroot("/no/such"));
  call("bpf", syscall(SYS_bpf, -1, NULL, 0));
  call("ptrace", syscall(SYS_ptrace, -1, 0, 0, 0));
  call("keyctl", syscall(SYS_keyctl, -1));
  call("unknown", syscall(9999));
  call("clone3", syscall(SYS_clone3, NULL, 0));
  call("setuid", setuid(0));

  const char *links[] = {"cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time", "time_for_children", "user", "uts"};
  for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
    char path[64], to[128];
    snprintf(path, sizeof path, "/proc/self/ns/%s", links[i]);
    ssize_t got = readlink(path, to, sizeof to - 1);
    printf("%s: %.*s\n", path, got > 0 ? (int)got : 0, to);
  }
  file("/proc/self/status", 0);
  file("/proc/self/cgroup", 0);
  file("/proc/self/oom_score_adj", 0);
  file("/proc/self/attr/current", 0);
  file("/proc/self/attr/exec", 0);
  file("/proc/self/attr/keycreate", 0);
  file("/proc/self/mountinfo", 1);
  file("/proc/self/uid_map", 0);
  file("/proc/self/setgroups", 0);
  file("/proc/self/loginuid", 0);
  file("/proc/self/coredump_filter", 0);
  file("/proc/self/limits", 1);
  magic("/proc/kcore"); // nothing where it is masked, ELF where it is not
  file("/proc/sys/kernel/hostname", 0);
  printf("write /proc/sys: %d\n", access("/proc/sys/kernel/hostname", W_OK));
  printf("write /: %d\n", access("/", W_OK));
  printf("done\n");
  fflush(stdout);
  if (strcmp(argv[1], "kill") == 0) {
    raise(SIGTERM);
  } else if (strcmp(argv[1], "hold") == 0) {
    for (;;)
      pause();
  }
  return 7;
}
