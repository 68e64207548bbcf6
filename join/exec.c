// SPDX-License-Identifier: Apache-2.0

// berth-exec runs one program in a container that runs already, as the command exec of runc does, or
// that of crun. berth starts it from a sealed copy in memory and has these descriptors ready for it:
//
//   0, 1, 2  the standard streams of the program
//   3        a socket to berth
//   4        a pidfd of the container's first process, whose namespaces are joined
//   5        the directory /proc of the host
//   6        a second socket to berth, of the process that stays
//   7...     the files tasks of the container's groups on cgroup v1
//   then     the directory of its group on cgroup v2, where it has one
//
// The process that berth has started stays out of the container: it is the parent of the program, and
// so of whatever the program makes by clone with CLONE_PARENT, which berth would not know of. A PID
// namespace does not end, and with it no container, before each process in it was reaped. It makes one
// process, which joins the container and makes the program's, and reaps all its children. When the
// program has ended it writes three bytes to the second socket: 'X', whether the program was executed,
// and the exit code, 128+N for signal N. It ends when it has no child any more. A byte from berth on the
// second socket, or the end of berth, has it kill what was made for the program.
//
// What to do comes over the first socket: struct plan and what follows it. internal/serve/join/plan.go has the
// same in Go. The answers are:
//
//   'P', a pid      the process that will execute the program, which waits
//   the end         the program is executed
//   'E' and a text  it is not, and nothing of the container's was run
//
// Between the first answer and the last berth sends one byte, and the process goes on. If berth ends
// instead, so does the process.
//
// Order and care follow what runc does, because the program must find what it would find there. Where
// crun does something else that a program could find, plan.crun says so:
//
//   - The process cannot be traced or looked into (PR_SET_DUMPABLE) before it is anywhere near the
//     container, and has the OOM score and the groups of the container by then.
//   - It is in no group of the container's while it is new: until a process that berth has forked
//     executes a program, berth's thread waits in the kernel, and its memory is berth's. In a group that
//     is frozen berth would wait with it, and one whose memory is used up would have berth killed
//     (memory.oom.group).
//   - All of them are children of the process that stays, which neither joins a namespace nor a group of
//     the container's: no end of the container's and no OOM kill in it takes the parent away.
//   - It opens nothing by a path of the container's: labels and the OOM score are written through
//     the host's /proc before any namespace is joined, and a fork inherits them.
//   - Only the socket is open besides the standard streams when the program is executed, and
//     close-on-exec closes it.
//
// It has no opinion about errors: berth lets the OCI runtime try again whatever fails here, so that
// the answer is the OCI runtime's.
//
// It is a trick: it relies on what runc and crun do in an exec. Delete when an OCI runtime joins a
// container in less than a fifth of the time it takes now.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SOCKET = 3, FIRST = 4, PROC = 5, STAYS = 6, GROUPS = 7 };
enum { VERSION = 4, LARGEST = 16 << 20 };

// plan is what berth sends first. All numbers are the machine's own.
struct plan {
  uint32_t version;
  uint32_t size;       // of what follows: limits, filter, groups, and strings with a 0 at their ends
  uint32_t namespaces; // CLONE_NEW*, without that of users
  uint32_t user;       // 1: join the user namespace
  uint32_t uid, gid;
  uint32_t groups;  // supplementary groups
  uint32_t limits;  // resource limits
  uint32_t filter;  // instructions of the seccomp filter; 0: there is none
  uint32_t flags;   // of the filter
  uint32_t args, env;
  uint32_t no_new_privs;
  uint32_t keyring; // 1: join the session keyring
  uint32_t umask;   // UINT32_MAX: as it is
  uint32_t cgroups; // descriptors of files tasks from GROUPS on
  uint32_t unified; // 1: that of a directory follows them
  uint32_t crun;    // 1: what crun does otherwise than runc is done so
  int32_t oom;      // the OOM score
  uint32_t last_cap;
  uint64_t bounding, effective, permitted, inheritable, ambient;
};

struct limit {
  uint32_t resource, unused;
  uint64_t soft, hard;
};

// made are the children of the process that stays which are made for the program: the kernel writes the
// pid of each into this memory, which all of them share, before that process runs. JOINS is the one that
// joins the container, MOVED the same in its group on cgroup v2, and PROGRAM executes the program.
enum { JOINS, MOVED, PROGRAM, KINDS };
static volatile pid_t *made;

static struct plan plan;
static struct limit *limits;
static struct sock_filter *filter;
static uint32_t *groups;
static char *cwd, *path, *keyring, *label, *profile;
static char **args, **env;

// fail tells berth that the program is not executed, and why.
static _Noreturn void fail(const char *what, const char *which) {
  char text[512];
  int n = snprintf(text, sizeof text, "E%s %s: %s", what, which, strerror(errno));
  if (n > (int)sizeof text - 1)
    n = sizeof text - 1;
  while (write(SOCKET, text, n) < 0 && errno == EINTR)
    ;
  _exit(125);
}

static void receive(void *to, size_t n) {
  for (char *p = to; n > 0;) {
    ssize_t got = read(SOCKET, p, n);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      _exit(125); // berth has ended
    p += got;
    n -= got;
  }
}

static char *string(char **at, char *end) {
  char *s = *at, *zero = memchr(s, 0, end - s);
  if (zero == NULL) {
    errno = EPROTO;
    fail("read", "strings");
  }
  *at = zero + 1;
  return s;
}

static char **strings(char **at, char *end, uint32_t n) {
  char **list = calloc((size_t)n + 1, sizeof *list);
  if (list == NULL)
    fail("read", "strings");
  for (uint32_t i = 0; i < n; i++)
    list[i] = string(at, end);
  return list;
}

// take receives the plan and takes it apart.
static void take(void) {
  receive(&plan, sizeof plan);
  uint64_t fixed = plan.limits * (uint64_t)sizeof *limits + plan.filter * (uint64_t)sizeof *filter +
                   plan.groups * (uint64_t)sizeof *groups;
  errno = EPROTO;
  if (plan.version != VERSION || plan.size > LARGEST || fixed > plan.size || plan.args > plan.size ||
      plan.env > plan.size || plan.cgroups > 64 || plan.unified > 1 || plan.filter > UINT16_MAX)
    fail("read", "the plan");
  char *rest = malloc(plan.size);
  if (rest == NULL)
    fail("read", "the plan");
  receive(rest, plan.size);
  char *end = rest + plan.size;
  limits = (struct limit *)rest;
  filter = (struct sock_filter *)(limits + plan.limits);
  groups = (uint32_t *)(filter + plan.filter);
  char *at = (char *)(groups + plan.groups);
  cwd = string(&at, end);
  path = string(&at, end);
  keyring = string(&at, end);
  label = string(&at, end);
  profile = string(&at, end);
  args = strings(&at, end, plan.args);
  env = strings(&at, end, plan.env);
}

// put writes a text into a file of the host's /proc in one write.
static int put(const char *file, const char *text, size_t n) {
  int fd = openat(PROC, file, O_WRONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0)
    return -1;
  ssize_t put;
  do
    put = write(fd, text, n);
  while (put < 0 && errno == EINTR);
  int err = errno;
  close(fd);
  errno = put >= 0 ? EIO : err;
  return put == (ssize_t)n ? 0 : -1;
}

// score sets the OOM score.
static void score(void) {
  char text[16];
  int n = snprintf(text, sizeof text, "%d", plan.oom);
  if (put("self/oom_score_adj", text, n) != 0)
    fail("set", "the OOM score");
}

// move goes on in a process that is made in the group on cgroup v2, and ends this one.
static void move(void) {
  struct clone_args how = {.flags = CLONE_PARENT | CLONE_PARENT_SETTID | CLONE_INTO_CGROUP,
                           .parent_tid = (uintptr_t)&made[MOVED],
                           .cgroup = GROUPS + plan.cgroups};
  long pid = syscall(SYS_clone3, &how, sizeof how);
  if (pid < 0)
    fail("make", "a process in the group");
  if (pid > 0)
    _exit(0);
  close(GROUPS + plan.cgroups);
}

// settle gives this process what else the host's side decides: groups, processors and labels.
static void settle(void) {
  char text[4200];
  int n;

  // One thread that moves itself does not wait for every processor, as a write to cgroup.procs does.
  for (uint32_t i = 0; i < plan.cgroups; i++) {
    if (write(GROUPS + i, "0", 1) != 1)
      fail("join", "a cgroup");
    close(GROUPS + i);
  }

  // All processors that the group allows, whatever berth may use.
  static unsigned char all[8192];
  memset(all, 0xff, sizeof all);
  if (syscall(SYS_sched_setaffinity, 0, sizeof all, all) != 0)
    fail("set", "the processors");

  if (*label != 0) {
    if (plan.keyring && put("thread-self/attr/keycreate", label, strlen(label)) != 0)
      fail("label", "keys");
    if (put("thread-self/attr/exec", label, strlen(label)) != 0)
      fail("set label", label);
  }
  if (*profile != 0) {
    n = snprintf(text, sizeof text, "exec %s", profile);
    if (n >= (int)sizeof text) {
      errno = ENAMETOOLONG;
      fail("set profile", profile);
    }
    if (put("thread-self/attr/apparmor/exec", text, n) != 0 &&
        (errno != ENOENT || put("thread-self/attr/exec", text, n) != 0))
      fail("set profile", profile);
  }
}

static void load(void) {
  struct sock_fprog program = {.len = plan.filter, .filter = filter};
  if (plan.filter > 0 && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, plan.flags, &program) != 0)
    fail("load", "the seccomp filter");
}

// bound drops what is not in the bounding set.
static void bound(void) {
  for (uint32_t c = 0; c <= plan.last_cap; c++)
    if (!(plan.bounding >> c & 1) && prctl(PR_CAPBSET_DROP, c, 0, 0, 0) != 0 && errno != EINVAL)
      fail("drop", "a capability");
}

static void capabilities(void) {
  struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct data[2] = {
      {plan.effective, plan.permitted, plan.inheritable},
      {plan.effective >> 32, plan.permitted >> 32, plan.inheritable >> 32}};
  if (syscall(SYS_capset, &head, data) != 0)
    fail("set", "the capabilities");
  if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0 && errno != EINVAL)
    fail("clear", "the ambient capabilities");
  for (uint32_t c = 0; c <= plan.last_cap; c++)
    if (plan.ambient >> c & 1)
      prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, c, 0, 0); // runc and crun go on without, too
}

// enter changes to the working directory. As root at first: the user may not reach it alone.
static int enter(int last) {
  if (chdir(cwd) == 0)
    return 1;
  if (last || (errno != EACCES && errno != EPERM))
    fail("change to", cwd);
  return 0;
}

// own gives the program's user the standard streams. crun gives them to the group, too. crun 1.21 also
// gives away the null device, which is the host's: this program never does.
static void own(void) {
  gid_t gid = plan.crun ? plan.gid : (gid_t)-1;
  for (int fd = 0; fd <= 2; fd++) {
    struct stat s;
    if (fstat(fd, &s) != 0)
      fail("look at", "a stream");
    int null = S_ISCHR(s.st_mode) && s.st_rdev == makedev(1, 3);
    if ((s.st_uid == plan.uid && !plan.crun) || null)
      continue;
    if (fchown(fd, plan.uid, gid) != 0 && errno != EPERM && errno != EROFS && (errno != EINVAL || !plan.crun))
      fail("give away", "a stream");
  }
}

static int executable(const char *file) {
  struct stat s;
  if (stat(file, &s) != 0)
    return 0;
  errno = EISDIR;
  return !S_ISDIR(s.st_mode) && syscall(SYS_faccessat2, AT_FDCWD, file, X_OK, AT_EACCESS) == 0;
}

// find finds the program as a shell would, but nothing that is relative to the directory by PATH. crun
// executes a name that is relative to the directory by its whole path.
static const char *find(const char *name) {
  static char file[8192];
  if (strchr(name, '/') != NULL) {
    if (plan.crun && *name != '/') {
      int n = strlen(cwd);
      while (n > 0 && cwd[n - 1] == '/')
        n--;
      errno = ENAMETOOLONG;
      if (snprintf(file, sizeof file, "%.*s/%s", n, cwd, name) >= (int)sizeof file)
        return NULL;
      name = file;
    }
    return executable(name) ? name : NULL;
  }
  for (const char *dir = path; *path != 0;) {
    size_t n = strcspn(dir, ":");
    int len = snprintf(file, sizeof file, "%.*s%s%s", (int)n, dir, n > 0 && dir[n - 1] == '/' ? "" : "/", name);
    if (n == 0 || *dir != '/') // the current directory
      len = snprintf(file, sizeof file, "%.*s%s%s", (int)n, dir, n > 0 ? "/" : "./", name);
    if (len < (int)sizeof file && executable(file)) {
      errno = EXDEV;
      return *file == '/' ? file : NULL;
    }
    if (dir[n] == 0)
      break;
    dir += n + 1;
  }
  errno = ENOENT;
  return NULL;
}

// become is the process that executes the program.
static _Noreturn void become(void) {
  munmap((void *)made, KINDS * sizeof *made); // by which the process that stays knows whom to kill
  char go;
  receive(&go, 1);
  if (setsid() < 0)
    fail("begin", "a session");
  for (uint32_t i = 0; i < plan.limits; i++) {
    struct rlimit l = {limits[i].soft, limits[i].hard};
    if (setrlimit(limits[i].resource, &l) != 0)
      fail("set", "a limit");
  }
  if (plan.user && setns(FIRST, CLONE_NEWUSER) != 0)
    fail("join", "the user namespace");
  close(FIRST);
  if (setresuid(0, 0, 0) != 0 || setresgid(0, 0, 0) != 0 || syscall(SYS_setgroups, 0, NULL) != 0)
    fail("become", "root");

  if (plan.keyring && syscall(SYS_keyctl, 1 /* KEYCTL_JOIN_SESSION_KEYRING */, keyring, 0, 0, 0) < 0 && errno != ENOSYS)
    fail("join keyring", keyring);
  if (plan.no_new_privs && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    fail("set", "no_new_privs");
  if (plan.umask != UINT32_MAX)
    umask(plan.umask);

  // The filter needs the capabilities unless there are no new privileges; then it comes last. crun changes
  // the directory before it loads the filter, and looks for the program as root: it executes what it finds.
  const char *program = NULL;
  if (!plan.no_new_privs && !plan.crun)
    load();
  int there = enter(0);
  if (plan.crun)
    program = find(args[0]);
  if (!plan.no_new_privs && plan.crun)
    load();
  bound();
  if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0)
    fail("keep", "the capabilities");
  own();
  if (syscall(SYS_setgroups, plan.groups, groups) != 0)
    fail("set", "the groups");
  if (syscall(SYS_setgid, plan.gid) != 0)
    fail("set", "the group");
  if (syscall(SYS_setuid, plan.uid) != 0)
    fail("set", "the user");
  if (!there)
    enter(1);
  // A directory that is not in the container's own tree is a way out (CVE-2024-21626).
  static char where[8192];
  if (syscall(SYS_getcwd, where, sizeof where) < 0)
    fail("look at", "the directory");
  errno = EXDEV;
  if (*where != '/')
    fail("stay in", "the directory");
  if (prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0) != 0)
    fail("keep", "no capabilities");
  capabilities();
  if (program == NULL)
    program = find(args[0]);
  if (program == NULL)
    fail("find", args[0]);

  if (fcntl(SOCKET, F_SETFD, FD_CLOEXEC) != 0)
    fail("close", "the socket");
  if (syscall(SYS_close_range, SOCKET + 1, ~0U, 0) != 0)
    fail("close", "descriptors");
  if (plan.no_new_privs)
    load();
  do
    execve(program, args, env);
  while (errno == EINTR);
  fail("execute", program);
}

// join joins the container, and makes the process that executes the program.
static _Noreturn void join(void) {
  close(STAYS);
  take();
  // Nothing that berth may have been started with goes anywhere near the container.
  if (syscall(SYS_close_range, GROUPS + plan.cgroups + plan.unified, ~0U, 0) != 0)
    fail("close", "descriptors");
  // Who starts berth by nohup has it ignore SIGHUP, and a shell's & SIGINT: that is not for the
  // program.
  for (int s = 1; s < _NSIG; s++)
    signal(s, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  if (sigprocmask(SIG_SETMASK, &none, NULL) != 0)
    fail("unblock", "the signals");
  if (plan.args == 0) {
    errno = EPROTO;
    fail("find", "a program");
  }
  score(); // before the group's OOM killer can look at it
  if (plan.unified)
    move();
  settle();
  close(PROC);
  if (plan.namespaces != 0 && setns(FIRST, plan.namespaces) != 0)
    fail("join", "the namespaces");

  // A process keeps its PID namespace; its children are in the one it has joined.
  pid_t pid = syscall(SYS_clone, CLONE_PARENT | CLONE_PARENT_SETTID | SIGCHLD, NULL, &made[PROGRAM], NULL, NULL);
  if (pid < 0)
    fail("make", "a process");
  if (pid == 0)
    become();
  char answer[5] = {'P'};
  memcpy(answer + 1, &pid, sizeof pid);
  if (write(SOCKET, answer, sizeof answer) != sizeof answer)
    kill(pid, SIGKILL);
  _exit(0);
}

static void woken(int signal) { (void)signal; }

// rest waits until a child ends, or berth says something or is gone, which it reports.
static int rest(const struct timespec *most, const sigset_t *asleep) {
  struct pollfd berth = {.fd = STAYS, .events = POLLIN};
  return ppoll(&berth, 1, most, asleep) > 0;
}

// executed reports whether a process that has ended, and was not reaped, has another name than it was
// given: 1, or 0; -1 when it cannot be asked now.
static int executed(pid_t pid, const char *token) {
  char file[32], name[17] = {0};
  snprintf(file, sizeof file, "%d/comm", pid);
  int fd = openat(PROC, file, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return -1;
  ssize_t n = read(fd, name, sizeof name - 1);
  close(fd);
  return n <= 0 ? -1 : strncmp(name, token, strlen(token)) != 0;
}

// stay is the rest of the process that berth has started: it reaps its children, says how the program
// has ended, and ends with the last of them.
static _Noreturn void stay(const char *token) {
  prctl(PR_SET_NAME, "berth-exec", 0, 0, 0);
  // The streams of the program end with it, and the first socket with the program's execution.
  syscall(SYS_close_range, 0, PROC - 1, 0);
  syscall(SYS_close_range, STAYS + 1, ~0U, 0);
  sigset_t asleep;
  sigfillset(&asleep);
  sigdelset(&asleep, SIGCHLD);
  struct sigaction wake = {.sa_handler = woken};
  sigaction(SIGCHLD, &wake, NULL);

  int reaped[KINDS] = {0}, unwanted = 0;
  for (;;) {
    siginfo_t end = {0};
    if (waitid(P_ALL, 0, &end, WEXITED | WNOHANG | WNOWAIT | __WALL) != 0 && errno == ECHILD)
      _exit(0);
    if (unwanted) // also what was made since: whoever makes it ends before the last look
      for (int i = 0; i < KINDS; i++)
        if (made[i] > 0 && !reaped[i])
          kill(made[i], SIGKILL);
    if (end.si_pid == 0) {
      // Once berth has spoken it always can be read from: only a child's end counts then.
      if (unwanted)
        sigsuspend(&asleep);
      else
        unwanted = rest(NULL, &asleep);
      continue;
    }
    if (end.si_pid == made[PROGRAM] && !reaped[PROGRAM]) {
      const struct timespec moment = {.tv_nsec = 10000000};
      int ran = executed(end.si_pid, token);
      while (ran < 0 && !unwanted) { // without a descriptor, of which the whole machine may have none
        unwanted = rest(&moment, &asleep);
        ran = executed(end.si_pid, token);
      }
      char said[3] = {'X', ran > 0, end.si_code == CLD_EXITED ? end.si_status : 128 + end.si_status};
      while (write(STAYS, said, sizeof said) < 0 && errno == EINTR)
        ;
    }
    for (int i = 0; i < KINDS; i++)
      if (end.si_pid == made[i])
        reaped[i] = 1;
    waitid(P_PID, end.si_pid, &end, WEXITED | __WALL);
  }
}

int main(int argc, char **argv) {
  // Before anything else: nobody may look into this process or take a descriptor from it.
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
    fail("become", "undumpable");
  // By its name berth knows later whether the program was executed.
  const char *token = argc > 1 ? argv[1] : argv[0];
  prctl(PR_SET_NAME, token, 0, 0, 0);
  sigset_t all;
  sigfillset(&all);
  made = mmap(NULL, KINDS * sizeof *made, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED || sigprocmask(SIG_SETMASK, &all, NULL) != 0)
    fail("prepare", "a process");
  pid_t pid = syscall(SYS_clone, CLONE_PARENT_SETTID | SIGCHLD, NULL, &made[JOINS], NULL, NULL);
  if (pid < 0)
    fail("make", "a process");
  if (pid == 0)
    join();
  stay(token);
}
