// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"github.com/opencontainers/runtime-spec/specs-go"
)

var architectures = []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32}

// allowList is a profile as a container's default one is: what is not named gets an error.
func allowList() *specs.LinuxSeccomp {
	return &specs.LinuxSeccomp{
		DefaultAction: specs.ActErrno,
		Architectures: architectures,
		Syscalls: []specs.LinuxSyscall{
			{Names: []string{
				"access", "arch_prctl", "bind", "brk", "capget", "capset", "chdir", "chmod", "chown", "clock_gettime", "clone", "close",
				"close_range", "dup", "dup2", "dup3", "epoll_create1", "epoll_ctl", "epoll_pwait", "eventfd2", "execve", "execveat",
				"exit", "exit_group", "faccessat", "faccessat2", "fchdir", "fchown", "fcntl", "fstat", "fstatfs", "futex", "getcwd", "getdents64",
				"getegid", "geteuid", "getgid", "getgroups", "getpgrp", "getpid", "getppid", "getpriority", "getrandom", "getresgid", "getresuid",
				"getrlimit", "getsid", "gettid", "getuid", "ioctl", "ioprio_get", "kill", "lseek", "lstat", "madvise", "mmap", "mprotect", "munmap",
				"nanosleep", "newfstatat", "open", "openat", "openat2", "pause", "pipe2", "poll", "ppoll", "prctl", "pread64", "prlimit64", "read",
				"readlink", "readlinkat", "rseq", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sched_getaffinity", "sched_getscheduler",
				"sched_yield", "set_robust_list", "set_tid_address", "setgid", "setgroups", "setresgid", "setresuid", "setrlimit", "setuid",
				"sigaltstack", "socket", "stat", "statfs", "statx", "tgkill", "umask", "uname", "wait4", "write", "writev", "fchownat", "fchmodat",
				"keyctl", "no_such_system_call", "socketcall", "pidfd_open",
			}, Action: specs.ActAllow},
			{Names: []string{"personality"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Index: 0, Value: 0xffffffff, Op: specs.OpEqualTo}}},
			{Names: []string{"personality"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Index: 0, Value: 8, Op: specs.OpEqualTo}}},
			{Names: []string{"clone3"}, Action: specs.ActErrno, ErrnoRet: ptr(uint(38))},
			{Names: []string{"unshare"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Index: 0, Value: 0x7e020000, Op: specs.OpMaskedEqual}}},
			{Names: []string{"fadvise64"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Index: 0, Value: 5, Op: specs.OpGreaterThan}, {Index: 0, Value: 10, Op: specs.OpLessThan}}},
		},
	}
}

// denyList is a profile that names what gets an error.
func denyList() *specs.LinuxSeccomp {
	return &specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow,
		Architectures: architectures,
		Syscalls: []specs.LinuxSyscall{
			{Names: []string{"mknod", "mknodat", "chroot"}, Action: specs.ActErrno, ErrnoRet: ptr(uint(77))},
			{Names: []string{"bpf", "ptrace"}, Action: specs.ActErrno},
		},
	}
}
