// SPDX-License-Identifier: Apache-2.0

// berth-seccomp turns a seccomp profile into the filter that runc makes of it. berth runs it once for
// each profile: it needs libseccomp, which berth, that is built without C, cannot call.
//
//   berth-seccomp            reads a profile from the standard input, and writes the filter
//   berth-seccomp -v         prints the version of libseccomp, which has to be that of runc
//   berth-seccomp -u         reads names of system calls, and writes those that libseccomp does not
//   know
//
// A profile has a line for each statement, and internal/serve/join/seccomp.go writes it:
//
//   default ACTION ERRNO                       ERRNO is -1 where there is none
//   arch TOKEN                                 a number of libseccomp's
//   flag log|ssb|default                       default: ssb where the kernel knows it
//   rule ACTION ERRNO NAME [INDEX OP A B]...   ACTION and OP are numbers of libseccomp's
//
// The filter is the flags for seccomp(2), four bytes, and instructions of eight bytes each.
//
// As runc's, it begins with a stub of its own: where the filter refuses what it does not know, a
// system call above the last one that the profile names gets ENOSYS, so that a program falls back to
// an older one. The C library of a container may be newer than the profile.

#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 4096, ARCHES = 8, X32 = 1 << 30 };

struct rule {
  char name[64];
  uint32_t action;
  int args;
  struct scmp_arg_cmp arg[12];
};

static struct rule rules[MOST];
static int count;
static uint32_t arches[ARCHES];
static int arch_count;
static uint32_t otherwise;
static uint32_t flags;

static _Noreturn void die(const char *what, const char *which) {
  fprintf(stderr, "berth-seccomp: %s %s\n", what, which);
  exit(1);
}

// action returns what libseccomp takes: EPERM is the error where none is named.
static uint32_t action(uint32_t a, long err) {
  if (a == SCMP_ACT_ERRNO(0) || a == SCMP_ACT_TRACE(0))
    return a | (err < 0 ? EPERM : err & 0xffff);
  return a;
}

static void parse(void) {
  static char line[4096];
  while (fgets(line, sizeof line, stdin) != NULL) {
    char word[64];
    unsigned long a;
    long err;
    int at = 0;
    if (strchr(line, '\n') == NULL)
      die("a line is too long:", line);
    if (sscanf(line, "default %lu %ld", &a, &err) == 2) {
      otherwise = action(a, err);
    } else if (sscanf(line, "arch %lu", &a) == 1) {
      if (arch_count == ARCHES)
        die("too many:", line);
      arches[arch_count++] = a;
    } else if (sscanf(line, "flag %63s", word) == 1) {
      unsigned api = seccomp_api_get();
      if (strcmp(word, "log") == 0 && api >= 3)
        flags |= SECCOMP_FILTER_FLAG_LOG;
      else if ((strcmp(word, "ssb") == 0 || strcmp(word, "default") == 0) && api >= 4)
        flags |= SECCOMP_FILTER_FLAG_SPEC_ALLOW;
      else if (strcmp(word, "default") != 0)
        die("not supported:", line);
    } else if (sscanf(line, "rule %lu %ld %63s%n", &a, &err, word, &at) == 3) {
      if (count == MOST)
        die("too many:", line);
      struct rule *r = &rules[count++];
      r->action = action(a, err);
      memcpy(r->name, word, sizeof word);
      unsigned index, op;
      unsigned long long x, y;
      for (int n; sscanf(line + at, "%u %u %llu %llu%n", &index, &op, &x, &y, &n) == 4; at += n) {
        if (r->args == 12 || index > 5)
          die("too many:", line);
        r->arg[r->args++] = (struct scmp_arg_cmp){index, op, x, y};
      }
      if (line[at] != '\n')
        die("not understood:", line);
    } else {
      die("not understood:", line);
    }
  }
}

static void add(scmp_filter_ctx ctx, const struct rule *r) {
  if (r->action == otherwise)
    return;
  int nr = seccomp_syscall_resolve_name(r->name);
  if (nr == __NR_SCMP_ERROR)
    return; // the library does not know it, so runc leaves it out
  // Two conditions on one argument cannot be in one rule: then each is a rule.
  int twice = 0;
  for (int i = 0; i < r->args; i++)
    for (int j = 0; j < i; j++)
      twice |= r->arg[i].arg == r->arg[j].arg;
  if (!twice) {
    if (seccomp_rule_add_array(ctx, r->action, nr, r->args, r->arg) != 0)
      die("cannot add a rule for", r->name);
    return;
  }
  for (int i = 0; i < r->args; i++)
    if (seccomp_rule_add_array(ctx, r->action, nr, 1, &r->arg[i]) != 0)
      die("cannot add a rule for", r->name);
}

// The stub is written from its end to its start, because jumps lead forward.
static struct sock_filter stub[128];
static uint32_t first = 128;

static void prepend(uint16_t code, uint8_t jt, uint8_t jf, uint32_t k) {
  if (first == 0)
    die("the stub is too long", "");
  stub[--first] = (struct sock_filter){code, jt, jf, k};
}

enum { LOAD = BPF_LD | BPF_W | BPF_ABS, JA = BPF_JMP | BPF_JA, JEQ = BPF_JMP | BPF_JEQ | BPF_K, JGT = BPF_JMP | BPF_JGT | BPF_K, JSET = BPF_JMP | BPF_JSET | BPF_K };

// last returns the highest system call of an architecture that a rule names; 0 for none.
static int last(uint32_t arch) {
  int most = 0;
  for (int i = 0; i < count; i++) {
    int nr = seccomp_syscall_resolve_name_arch(arch, rules[i].name);
    if (nr != __NR_SCMP_ERROR && nr > most)
      most = nr;
  }
  return most;
}

static uint32_t audit(uint32_t arch) {
  switch (arch) {
  case SCMP_ARCH_X86:
    return AUDIT_ARCH_I386;
  case SCMP_ARCH_X86_64:
  case SCMP_ARCH_X32:
    return AUDIT_ARCH_X86_64;
  case SCMP_ARCH_ARM:
    return AUDIT_ARCH_ARM;
  case SCMP_ARCH_AARCH64:
    return AUDIT_ARCH_AARCH64;
  }
  die("an architecture is not supported", "");
}

// Each step of the stub, with distances from its end: the last instruction returns ENOSYS, the one
// before leads to the filter.
static void make_stub(void) {
  uint32_t all[ARCHES + 1], kinds[ARCHES + 1], places[ARCHES + 1];
  int n = 0, k = 0, native = 0;
  for (int i = 0; i < arch_count; i++)
    all[n++] = arches[i];
  for (int i = 0; i < n; i++)
    native |= all[i] == seccomp_arch_native();
  if (!native)
    all[n++] = seccomp_arch_native();

  const uint32_t end = 128;
  prepend(BPF_RET | BPF_K, 0, 0, SCMP_ACT_ERRNO(ENOSYS));
  prepend(JA, 0, 0, 1);
  for (int i = 0; i < n; i++) {
    uint32_t kind = audit(all[i]);
    int seen = 0;
    for (int j = 0; j < k; j++)
      seen |= kinds[j] == kind;
    if (seen)
      continue;
    int normal = 0, x32 = 0, many = 0;
    for (int j = i; j < n; j++)
      if (audit(all[j]) == kind && last(all[j]) != 0) {
        many++;
        *(all[j] == SCMP_ARCH_X32 ? &x32 : &normal) = last(all[j]);
      }
    kinds[k] = kind;
    if (many == 0) {
      places[k++] = end; // straight to the filter
      continue;
    }
    uint32_t enosys = end - 1, filter = end;
    prepend(JA, 0, 0, filter - first);
    // The distance is from the instruction after the jump.
    if (x32) {
      prepend(JGT, enosys - first, 0, x32);
      if (!normal)
        prepend(JSET, 0, 1, X32);
    }
    if (normal && x32) {
      prepend(JGT, enosys - first, 1, normal);
      prepend(JSET, 1, 0, X32);
    } else if (normal) {
      prepend(JGT, enosys - first, 0, normal);
      if (kind == AUDIT_ARCH_X86_64)
        prepend(JSET, 1, 0, X32);
    }
    prepend(LOAD, 0, 0, 0);
    places[k++] = first;
  }
  prepend(JA, 0, 0, end - first);
  for (int i = 0; i < k; i++)
    prepend(JEQ, places[i] - first, 0, kinds[i]);
  prepend(LOAD, 0, 0, 4);
}

// unknown writes the names on the standard input for which runc would add no rule.
static int unknown(void) {
  static char name[4096];
  while (fgets(name, sizeof name, stdin) != NULL) {
    name[strcspn(name, "\n")] = 0;
    if (seccomp_syscall_resolve_name(name) == __NR_SCMP_ERROR && puts(name) < 0)
      die("cannot write", "a name");
  }
  return ferror(stdin) || fflush(stdout) != 0;
}

static void put(const void *p, size_t n) {
  if (fwrite(p, 1, n, stdout) != n)
    die("cannot write", "the filter");
}

// drop gives up every capability, for good: a profile is the work of strangers, and to make a
// filter of it needs none. A failure changes nothing for the filter, and so is not an error.
static void drop(void) {
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};
  (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  (void)syscall(SYS_capset, &header, none);
}

int main(int argc, char **argv) {
  drop();
  if (argc > 1 && strcmp(argv[1], "-v") == 0) {
    const struct scmp_version *v = seccomp_version();
    return printf("%u.%u.%u\n", v->major, v->minor, v->micro) < 0;
  }
  if (argc > 1 && strcmp(argv[1], "-u") == 0)
    return unknown();
  parse();
  scmp_filter_ctx ctx = seccomp_init(otherwise);
  if (ctx == NULL)
    die("cannot begin", "a filter");
  for (int i = 0; i < arch_count; i++) {
    int rc = seccomp_arch_add(ctx, arches[i]);
    if (rc != 0 && rc != -EEXIST)
      die("cannot add", "an architecture");
  }
  if (count > 32)
    seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2);
  if (seccomp_attr_set(ctx, SCMP_FLTATR_CTL_NNP, 0) != 0)
    die("cannot set", "an attribute");
  for (int i = 0; i < count; i++)
    add(ctx, &rules[i]);
  int fd = memfd_create("filter", MFD_CLOEXEC);
  if (fd < 0 || seccomp_export_bpf(ctx, fd) != 0)
    die("cannot export", "the filter");

  put(&flags, sizeof flags);
  int lenient = otherwise == SCMP_ACT_ALLOW || otherwise == SCMP_ACT_LOG || (otherwise & 0xffff0000U) == SCMP_ACT_TRACE(0);
  if (!lenient) {
    make_stub();
    put(&stub[first], (128 - first) * sizeof *stub);
  }
  static char buffer[8 * 65536];
  if (lseek(fd, 0, SEEK_SET) != 0)
    die("cannot read", "the filter");
  for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) != 0;) {
    if (n < 0)
      die("cannot read", "the filter");
    put(buffer, n);
  }
  if (fflush(stdout) != 0)
    die("cannot write", "the filter");
  return 0;
}
