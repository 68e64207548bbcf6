// SPDX-License-Identifier: Apache-2.0

package join

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Refusal is the reason why a process cannot be made here. It is not a failure: the OCI runtime
// makes the process.
type Refusal struct {
	Why  Reason
	What string // for a person
}

func (r *Refusal) Error() string { return string(r.Why) + ": " + r.What }

// Reason is the kind of a refusal. There are few, so that they can be counted.
type Reason string

// The reasons.
const (
	OCIRuntime    Reason = "runtime"       // another OCI runtime than one that this room knows
	Specification Reason = "specification" // something in it that this room does not know
	Seccomp       Reason = "seccomp"       // a filter that cannot be made as the OCI runtime makes it
	Groups        Reason = "cgroup"        // the container is not in its groups, or is paused
	Failed        Reason = "failed"        // berth-exec could not
)

func refuse(why Reason, format string, a ...any) error {
	return &Refusal{why, fmt.Sprintf(format, a...)}
}

// head is struct plan of join/exec.c.
type head struct {
	Version, Size    uint32
	Namespaces, User uint32
	UID, GID         uint32
	Groups, Limits   uint32
	Filter, Flags    uint32
	Args, Env        uint32
	NoNewPrivs       uint32
	Keyring          uint32
	Umask            uint32
	Cgroups, Unified uint32
	Crun             uint32
	OOM              int32
	LastCap          uint32
	Bounding         uint64
	Effective        uint64
	Permitted        uint64
	Inheritable      uint64
	Ambient          uint64
}

const version = 4

// asItIs is the umask of a process that keeps the one it has from berth.
const asItIs = ^uint32(0)

type limit struct {
	Resource, _ uint32
	Soft, Hard  uint64
}

// plan is the part that every process of one container has in common.
type plan struct {
	head    head
	limits  []limit
	filter  []byte
	groups  []uint32
	cwd     string
	path    string
	keyring string
	label   string
	profile string
	env     []string
}

// namespaces are the flags of those that can be joined. A user namespace is joined separately.
var namespaces = map[specs.LinuxNamespaceType]uint32{
	specs.PIDNamespace:     unix.CLONE_NEWPID,
	specs.NetworkNamespace: unix.CLONE_NEWNET,
	specs.MountNamespace:   unix.CLONE_NEWNS,
	specs.IPCNamespace:     unix.CLONE_NEWIPC,
	specs.UTSNamespace:     unix.CLONE_NEWUTS,
	specs.CgroupNamespace:  unix.CLONE_NEWCGROUP,
}

// limits by their names, of every architecture that berth is built for.
var limits = map[string]uint32{
	"RLIMIT_CPU": 0, "RLIMIT_FSIZE": 1, "RLIMIT_DATA": 2, "RLIMIT_STACK": 3, "RLIMIT_CORE": 4, "RLIMIT_RSS": 5,
	"RLIMIT_NPROC": 6, "RLIMIT_NOFILE": 7, "RLIMIT_MEMLOCK": 8, "RLIMIT_AS": 9, "RLIMIT_LOCKS": 10,
	"RLIMIT_SIGPENDING": 11, "RLIMIT_MSGQUEUE": 12, "RLIMIT_NICE": 13, "RLIMIT_RTPRIO": 14, "RLIMIT_RTTIME": 15,
}

// capabilities in the order of their numbers (capabilities(7)).
var capabilities = strings.Fields(`CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_KILL
	CAP_SETGID CAP_SETUID CAP_SETPCAP CAP_LINUX_IMMUTABLE CAP_NET_BIND_SERVICE CAP_NET_BROADCAST CAP_NET_ADMIN
	CAP_NET_RAW CAP_IPC_LOCK CAP_IPC_OWNER CAP_SYS_MODULE CAP_SYS_RAWIO CAP_SYS_CHROOT CAP_SYS_PTRACE
	CAP_SYS_PACCT CAP_SYS_ADMIN CAP_SYS_BOOT CAP_SYS_NICE CAP_SYS_RESOURCE CAP_SYS_TIME CAP_SYS_TTY_CONFIG
	CAP_MKNOD CAP_LEASE CAP_AUDIT_WRITE CAP_AUDIT_CONTROL CAP_SETFCAP CAP_MAC_OVERRIDE CAP_MAC_ADMIN CAP_SYSLOG
	CAP_WAKE_ALARM CAP_BLOCK_SUSPEND CAP_AUDIT_READ CAP_PERFMON CAP_BPF CAP_CHECKPOINT_RESTORE`)

// planned makes a plan of a specification, without a filter, or names the part that is not covered.
// It knows every field of the process: a test fails when the specification gets another one. by is
// the name of the OCI runtime.
func planned(id, by string, s *specs.Spec, lastCap uint32) (*plan, error) {
	p, l := s.Process, s.Linux
	switch {
	case p == nil || l == nil:
		return nil, refuse(Specification, "it has no process")
	case s.Windows != nil || s.VM != nil || s.Solaris != nil || s.ZOS != nil || s.FreeBSD != nil:
		return nil, refuse(Specification, "it is for another system")
	case p.Capabilities == nil:
		return nil, refuse(Specification, "it has no capabilities")
	case p.OOMScoreAdj == nil:
		return nil, refuse(Specification, "it has no OOM score")
	case p.Scheduler != nil:
		return nil, refuse(Specification, "it has a scheduler")
	case p.IOPriority != nil:
		return nil, refuse(Specification, "it has a priority of I/O")
	case p.ExecCPUAffinity != nil:
		return nil, refuse(Specification, "it has processors of its own for exec")
	case p.SelinuxLabel != "" && p.ApparmorProfile != "":
		return nil, refuse(Specification, "it has both an SELinux label and an AppArmor profile")
	case !filepath.IsAbs(p.Cwd):
		return nil, refuse(Specification, "its directory %q is not absolute", p.Cwd)
	case l.Personality != nil, l.MemoryPolicy != nil, l.IntelRdt != nil, len(l.TimeOffsets) > 0:
		return nil, refuse(Specification, "it has a personality, a memory policy, Intel RDT or offsets of time")
	}
	out := &plan{
		cwd:     p.Cwd,
		keyring: "_ses." + id,
		label:   p.SelinuxLabel,
		profile: p.ApparmorProfile,
		groups:  slices.Clone(p.User.AdditionalGids),
	}
	out.head = head{
		Version: version,
		UID:     p.User.UID,
		GID:     p.User.GID,
		Keyring: 1,
		Umask:   asItIs,
		OOM:     int32(*p.OOMScoreAdj),
		LastCap: lastCap,
	}
	if p.NoNewPrivileges {
		out.head.NoNewPrivs = 1
	}
	if p.User.Umask != nil {
		out.head.Umask = *p.User.Umask
	}
	for _, n := range l.Namespaces {
		flag, ok := namespaces[n.Type]
		switch {
		case n.Type == specs.UserNamespace:
			out.head.User = 1
		case !ok:
			return nil, refuse(Specification, "it has a namespace %q", n.Type)
		}
		out.head.Namespaces |= flag
	}
	if out.head.Namespaces&unix.CLONE_NEWNS == 0 {
		return nil, refuse(Specification, "it has no mount namespace")
	}
	for _, r := range p.Rlimits {
		n, ok := limits[r.Type]
		if !ok {
			return nil, refuse(Specification, "it has a limit %q", r.Type)
		}
		out.limits = append(out.limits, limit{Resource: n, Soft: r.Soft, Hard: r.Hard})
	}
	for _, set := range []struct {
		names []string
		to    *uint64
	}{
		{p.Capabilities.Bounding, &out.head.Bounding},
		{p.Capabilities.Effective, &out.head.Effective},
		{p.Capabilities.Permitted, &out.head.Permitted},
		{p.Capabilities.Inheritable, &out.head.Inheritable},
		{p.Capabilities.Ambient, &out.head.Ambient},
	} {
		for _, name := range set.names {
			n := slices.Index(capabilities, name)
			if n < 0 {
				return nil, refuse(Specification, "it has a capability %q", name)
			}
			if uint32(n) <= lastCap {
				*set.to |= 1 << n
			}
		}
	}
	var err error
	if out.env, out.path, err = environment(p.Env, by == crun); err != nil {
		return nil, err
	}
	if by == crun {
		err = out.asCrun(id, s)
	}
	return out, err
}

// environment returns the variables as runc passes them, of each the last, or as crun does: there
// the last is in the place of the first. path is PATH as they use it: runc cleans each directory,
// and crun drops the slashes at its end.
func environment(vars []string, inPlace bool) (env []string, path string, err error) {
	places := map[string]int{}
	for _, v := range vars {
		key, _, ok := strings.Cut(v, "=")
		if !ok || key == "" {
			return nil, "", refuse(Specification, "it has a variable without a name")
		}
		if i, twice := places[key]; twice {
			if inPlace {
				env[i] = v
				continue
			}
			env[i] = ""
		}
		places[key] = len(env)
		env = append(env, v)
	}
	value := func(key string) string {
		i, ok := places[key]
		if !ok {
			return ""
		}
		return strings.TrimPrefix(env[i], key+"=")
	}
	if value("HOME") == "" {
		return nil, "", refuse(Specification, "it has no HOME, which the OCI runtime may look up in the container")
	}
	dirs := filepath.SplitList(value("PATH"))
	for i, d := range dirs {
		switch {
		case !inPlace:
			dirs[i] = filepath.Clean(d)
		case filepath.IsAbs(d):
			dirs[i] = "/" + strings.Trim(d, "/")
		}
	}
	path = strings.Join(dirs, ":")
	return slices.DeleteFunc(env, func(v string) bool { return v == "" }), path, nil
}

// encode returns the message to berth-exec for a program, and the number of groups of which it has
// descriptors.
func (p *plan) encode(args []string, cgroups int, unified bool) ([]byte, error) {
	var rest bytes.Buffer
	add := func(v any) { _ = binary.Write(&rest, binary.NativeEndian, v) } // a Buffer takes everything
	add(p.limits)
	rest.Write(p.filter)
	add(p.groups)
	for _, list := range [][]string{{p.cwd, p.path, p.keyring, p.label, p.profile}, args, p.env} {
		for _, s := range list {
			if strings.IndexByte(s, 0) >= 0 {
				return nil, refuse(Specification, "a string has a zero in it")
			}
			rest.WriteString(s)
			rest.WriteByte(0)
		}
	}
	if rest.Len() > largest {
		return nil, refuse(Specification, "the arguments and the environment are too long")
	}
	h := p.head
	h.Size = uint32(rest.Len())
	h.Groups = uint32(len(p.groups))
	h.Limits = uint32(len(p.limits))
	h.Filter = uint32(len(p.filter) / 8)
	h.Args = uint32(len(args))
	h.Env = uint32(len(p.env))
	h.Cgroups = uint32(cgroups)
	if unified {
		h.Unified = 1
	}
	var out bytes.Buffer
	_ = binary.Write(&out, binary.NativeEndian, h)
	out.Write(rest.Bytes())
	return out.Bytes(), nil
}

// largest is how much berth-exec takes.
const largest = 16 << 20
