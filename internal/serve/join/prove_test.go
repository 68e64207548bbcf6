// SPDX-License-Identifier: Apache-2.0

package join

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"

	"berth/internal/host/spec"
)

const libexecDir = "../../../build/libexec"

// defaultProfile is the default profile of a container without privileges.
func defaultProfile() *specs.LinuxSeccomp {
	s := seccomp.DefaultProfile(&specs.Spec{
		Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}},
		Linux:   &specs.Linux{},
	})
	s.Architectures = allTables
	return s
}

var (
	allTables = []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32}
	callNames = []string{
		"read", "write", "openat", "socket", "personality", "clone", "clone3", "ioctl", "prctl", "mmap", "ptrace", "io_uring_setup", "socketcall",
		"openat2", "faccessat2", "futex_waitv", "init_module", "exit_group", "recvfrom", "ipc", "chown32", "time", "not_a_call",
	}
	callActions = []specs.LinuxSeccompAction{
		specs.ActKillProcess, specs.ActKillThread, specs.ActKill, specs.ActTrap, specs.ActErrno, specs.ActErrno, specs.ActTrace, specs.ActLog, specs.ActAllow, specs.ActAllow,
	}
	callOperators = []specs.LinuxSeccompOperator{
		specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpEqualTo, specs.OpEqualTo, specs.OpGreaterEqual, specs.OpGreaterThan, specs.OpMaskedEqual,
	}
	callValues = []uint64{0, 1, 2, 3, 8, 9, 16, 38, 40, 0x20000, 0x20008, 1<<31 - 1, 1 << 31, 1<<32 - 2, 1<<32 - 1}
)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// randomProfile makes a profile: the default one with changes, or a few rules.
func randomProfile(r *rand.Rand) *specs.LinuxSeccomp {
	errno := func() *uint {
		e := pick(r, []uint{0, 1, 13, 38})
		return pick(r, []*uint{nil, &e})
	}
	s := &specs.LinuxSeccomp{}
	if r.IntN(2) == 0 {
		s = defaultProfile()
		for i := range s.Syscalls {
			s.Syscalls[i].Names = slices.DeleteFunc(slices.Clone(s.Syscalls[i].Names), func(string) bool { return r.IntN(8) == 0 })
		}
	}
	s.DefaultAction, s.DefaultErrnoRet = pick(r, callActions), errno()
	s.Architectures = pick(r, [][]specs.Arch{nil, allTables, allTables, {specs.ArchX86_64, specs.ArchX32}, {specs.ArchX86}})
	conditions := r.IntN(2) == 0
	for range 1 + r.IntN(4) {
		call := specs.LinuxSyscall{Action: pick(r, callActions), ErrnoRet: errno()}
		for range 1 + r.IntN(5) {
			call.Names = append(call.Names, pick(r, callNames))
		}
		for conditions && r.IntN(2) == 0 && len(call.Args) < 3 {
			arg := specs.LinuxSeccompArg{Index: uint(r.IntN(3)), Op: pick(r, callOperators), Value: pick(r, callValues)}
			if arg.Op == specs.OpMaskedEqual {
				arg.ValueTwo = arg.Value & pick(r, callValues)
			}
			call.Args = append(call.Args, arg)
		}
		s.Syscalls = append(s.Syscalls, call)
	}
	return s
}

// intersected returns the variant of an intersection that is proved. The error is a refusal.
func intersected(t testing.TB, base, own *specs.LinuxSeccomp) (*specs.LinuxSeccomp, error) {
	t.Helper()
	variants, err := spec.Intersect(base, own, runtime.GOARCH)
	for _, v := range variants {
		if err = Prove(t.Context(), libexecDir, base, own, v); err == nil {
			return v, nil
		}
	}
	return nil, err
}

// callsAtRandom compares the answers of an intersection with those of its profiles, by another
// machine than Prove has, that of package bpf. It returns how many calls it made.
func callsAtRandom(t testing.TB, r *rand.Rand, base, own, both *specs.LinuxSeccomp, n int) int {
	t.Helper()
	var all [3]*bpf.VM
	f := newFilters(libexecDir)
	numbers := []uint32{0, 1, 2, 1 << 30, 1<<30 + 59}
	for i, s := range []*specs.LinuxSeccomp{base, own, both} {
		text, err := profile(s)
		if err != nil {
			t.Fatal(err)
		}
		out, err := f.run(t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		if all[i], err = bpf.NewVM(machineOf(out[4:])); err != nil {
			t.Fatal(err)
		}
		for at := 4; at < len(out); at += 8 { // what is compared is most likely to differ
			numbers = append(numbers, binary.NativeEndian.Uint32(out[at+4:]))
		}
	}
	for range n {
		arch := pick(r, []uint32{0xc000003e, 0xc000003e, 0x40000003, 0x40000003, 0x40000028})
		nr := pick(r, numbers) + uint32(r.IntN(3)) - 1
		if r.IntN(3) == 0 {
			nr = uint32(r.IntN(600)) | uint32(r.IntN(2))<<30
		}
		var args [6]uint64
		for i := range args {
			args[i] = pick(r, callValues) + uint64(r.IntN(3)) - 1
			if r.IntN(4) == 0 {
				args[i] = r.Uint64()
			}
			if arch == 0x40000003 {
				args[i] &= 1<<32 - 1
			}
		}
		var got [3]uint32
		for i := range all {
			var err error
			if got[i], err = verdictOf(all[i], arch, nr, args); err != nil {
				t.Fatal(err)
			}
		}
		ok := isSeverer(got[0], got[1], got[2])
		if !ok && (int32(nr) >= 0 || !denies(got[2])) {
			t.Fatalf("call %d of table %#x with %x: the profiles answer %#x and %#x, and their filter %#x", nr, arch, args, got[0], got[1], got[2])
		}
	}
	return n
}

// PROPERTIES 69: for profiles at random, the filter that libseccomp makes of an intersection answers
// each call as the more severe of both does, or there is none.
func TestAnIntersectionIsAsSevereAsBoth(t *testing.T) {
	count, calls := map[bool]int{}, 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 0))
		base, own := randomProfile(r), randomProfile(r)
		if seed%2 == 0 {
			base = defaultProfile()
		}
		both, err := intersected(t, base, own)
		if count[err == nil]++; err == nil {
			calls += callsAtRandom(t, r, base, own, both, 5000)
		}
	}
	if count[true] < 10 {
		t.Errorf("%d intersections were made, and %d refused", count[true], count[false])
	}
	t.Logf("%d intersections with %d calls, %d refused", count[true], calls, count[false])
}

func FuzzIntersection(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed, seed%2 == 0)
	}
	f.Fuzz(func(t *testing.T, seed uint64, ofDefault bool) {
		r := rand.New(rand.NewPCG(seed, 0))
		base, own := randomProfile(r), randomProfile(r)
		if ofDefault {
			base = defaultProfile()
		}
		if both, err := intersected(t, base, own); err == nil {
			callsAtRandom(t, r, base, own, both, 5000)
		}
	})
}

// PROPERTIES 69: the corners, with the default profile as the base or the other way round.
func TestProfilesAsPeopleWriteThem(t *testing.T) {
	var allowed []string
	for _, c := range defaultProfile().Syscalls {
		if c.Action == specs.ActAllow && len(c.Args) == 0 {
			allowed = append(allowed, c.Names...)
		}
	}
	r := rand.New(rand.NewPCG(1, 1))
	some := slices.DeleteFunc(slices.Clone(allowed), func(n string) bool { return r.IntN(3) == 0 || n == "socket" || n == "personality" })
	rule := func(a specs.LinuxSeccompAction, names ...string) specs.LinuxSyscall {
		return specs.LinuxSyscall{Names: names, Action: a}
	}
	on := func(c specs.LinuxSyscall, args ...specs.LinuxSeccompArg) specs.LinuxSyscall {
		c.Args = args
		return c
	}
	arg := func(i uint, op specs.LinuxSeccompOperator, v, w uint64) specs.LinuxSeccompArg {
		return specs.LinuxSeccompArg{Index: i, Op: op, Value: v, ValueTwo: w}
	}
	errno := func(c specs.LinuxSyscall, n uint) specs.LinuxSyscall {
		c.ErrnoRet = &n
		return c
	}
	list := func(otherwise specs.LinuxSeccompAction, calls ...specs.LinuxSyscall) *specs.LinuxSeccomp {
		return &specs.LinuxSeccomp{DefaultAction: otherwise, Architectures: allTables, Syscalls: calls}
	}
	const tiocsti, tioclinux, newUser = 0x5412, 0x541c, 0x10000000
	for i, tt := range []struct {
		name    string
		own     *specs.LinuxSeccomp
		refused string // a part of the error, "" for none
	}{
		{"the default once more", defaultProfile(), ""},
		{"all is allowed", list(specs.ActAllow), ""},
		{"all is logged", list(specs.ActLog), ""},
		{"a part is allowed", list(specs.ActErrno, rule(specs.ActAllow, some...)), ""},
		{"the rest kills the process", list(specs.ActKillProcess, rule(specs.ActAllow, some...)), ""},
		{"the rest kills the thread", list(specs.ActKillThread, rule(specs.ActAllow, some...)), ""},
		{"the rest is trapped", list(specs.ActTrap, rule(specs.ActAllow, some...)), ""},
		{"more than the base is allowed", list(specs.ActErrno, rule(specs.ActAllow, append([]string{"ptrace", "mount", "io_uring_setup", "bpf"}, some...)...)), ""},
		{"some is denied", list(specs.ActAllow, rule(specs.ActErrno, "io_uring_setup", "ptrace", "chmod", "openat2")), ""},
		{"with a number", list(specs.ActAllow, errno(rule(specs.ActErrno, "chmod", "openat2"), 38)), ""},
		{"some kills", list(specs.ActAllow, rule(specs.ActKillProcess, "chmod"), rule(specs.ActKillThread, "openat2")), ""},
		{"sockets are denied", list(specs.ActAllow, rule(specs.ActErrno, "socket")), ""},
		{"sockets of one family alone", list(specs.ActErrno, rule(specs.ActAllow, some...), on(rule(specs.ActAllow, "socket"), arg(0, specs.OpEqualTo, 1, 0))), ""},
		{"a condition of both", list(specs.ActErrno, rule(specs.ActAllow, some...), on(rule(specs.ActAllow, "personality"), arg(0, specs.OpEqualTo, 8, 0))), ""},
		{"a bit is denied", list(specs.ActAllow, on(rule(specs.ActErrno, "clone"), arg(0, specs.OpMaskedEqual, newUser, newUser))), ""},
		{"a value is denied", list(specs.ActAllow, on(rule(specs.ActErrno, "ioctl"), arg(1, specs.OpEqualTo, tiocsti, 0))), ""},
		{"a value of two arguments", list(specs.ActAllow, on(rule(specs.ActErrno, "ioctl"), arg(1, specs.OpEqualTo, tiocsti, 0), arg(0, specs.OpLessEqual, 2, 0))), "with the arguments"}, // libseccomp 2.6 lets too much through
		{"two entries, the first counts", list(specs.ActAllow, rule(specs.ActErrno, "chmod"), rule(specs.ActKillProcess, "chmod")), ""},
		{"a name that is not a call", list(specs.ActErrno, rule(specs.ActAllow, append([]string{"not_a_call"}, some...)...)), ""},

		{"two values are denied", list(specs.ActAllow,
			on(rule(specs.ActErrno, "ioctl"), arg(1, specs.OpEqualTo, tiocsti, 0)),
			on(rule(specs.ActErrno, "ioctl"), arg(1, specs.OpEqualTo, tioclinux, 0))), "system call ioctl: its conditions cannot be combined"},
		{"rules that overlap", list(specs.ActErrno,
			on(rule(specs.ActAllow, "ioctl"), arg(1, specs.OpLessThan, 9, 0)),
			on(rule(specs.ActLog, "ioctl"), arg(1, specs.OpEqualTo, 8, 0))), "that overlap"},
		{"more than 32 bits", list(specs.ActAllow, on(rule(specs.ActErrno, "mmap"), arg(0, specs.OpEqualTo, 1<<32, 0))), "more than 32 bits"},
		{"a listener", list(specs.ActAllow, rule(specs.ActNotify, "chmod")), "SCMP_ACT_NOTIFY"},
		{"a call that i386 has as another one, too", list(specs.ActAllow, on(rule(specs.ActErrno, "socket"), arg(0, specs.OpEqualTo, 38, 0))), "system call 102"},
	} {
		base, own := defaultProfile(), tt.own
		if i%2 == 1 {
			base, own = own, base
		}
		both, err := intersected(t, base, own)
		if (err == nil) != (tt.refused == "") || err != nil && !strings.Contains(err.Error(), tt.refused) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.refused)
		}
		if err == nil {
			callsAtRandom(t, rand.New(rand.NewPCG(1, 2)), base, own, both, 2000)
		}
	}
}

// A wrong result is not proved: what Prove is for.
func TestALooserProfileIsNotProved(t *testing.T) {
	base := defaultProfile()
	for name, change := range map[string]func(s *specs.LinuxSeccomp){
		"a call more": func(s *specs.LinuxSeccomp) {
			s.Syscalls = append(s.Syscalls, specs.LinuxSyscall{Names: []string{"init_module"}, Action: specs.ActAllow})
		},
		"one with a value": func(s *specs.LinuxSeccomp) {
			s.Syscalls = append(s.Syscalls, specs.LinuxSyscall{
				Names:  []string{"init_module"},
				Action: specs.ActAllow,
				Args:   []specs.LinuxSeccompArg{{Index: 2, Op: specs.OpEqualTo, Value: 0xdead}},
			})
		},
		"a default":      func(s *specs.LinuxSeccomp) { s.DefaultAction = specs.ActLog },
		"a table less":   func(s *specs.LinuxSeccomp) { s.Architectures = s.Architectures[:1] },
		"another number": func(s *specs.LinuxSeccomp) { n := uint(13); s.DefaultErrnoRet = &n },
	} {
		wrong := defaultProfile()
		change(wrong)
		if err := Prove(t.Context(), libexecDir, base, base, wrong); err == nil {
			t.Errorf("%s is proved", name)
		}
	}
	if err := Prove(t.Context(), libexecDir, base, base, base); err != nil {
		t.Error(err)
	}
}
