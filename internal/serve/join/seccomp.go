// SPDX-License-Identifier: Apache-2.0

package join

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// filters makes seccomp filters of profiles with berth-seccomp, each once.
type filters struct {
	program string

	// turn holds a value while the fields below are in use. A caller that waits for it can give up.
	turn    chan struct{}
	version string // of its libseccomp; "" until it is known
	made    map[string]filter
}

type filter struct {
	flags   uint32
	code    []byte // instructions of eight bytes
	refused error  // why there is none
}

// mostFilters is how many filters are kept; a node has few profiles.
const mostFilters = 256

func newFilters(libexec string) *filters {
	return &filters{program: filepath.Join(libexec, "berth-seccomp"), turn: make(chan struct{}, 1), made: map[string]filter{}}
}

// of returns the filter of a profile as runc makes it with this version of libseccomp.
func (f *filters) of(ctx context.Context, s *specs.LinuxSeccomp, libseccomp string) (filter, error) {
	if s == nil || s.DefaultAction == "" && len(s.Syscalls) == 0 {
		return filter{}, nil
	}
	text, err := profile(s)
	if err != nil {
		return filter{}, err
	}
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return filter{}, refuse(Seccomp, "wait for berth-seccomp: %v", ctx.Err())
	}
	if f.version == "" {
		out, err := f.run(ctx, "", "-v")
		if err != nil {
			return filter{}, refuse(Seccomp, "%v", err)
		}
		f.version = strings.TrimSpace(string(out))
	}
	if f.version != libseccomp {
		return filter{}, refuse(Seccomp, "berth-seccomp has libseccomp %s, and the OCI runtime has %q", f.version, libseccomp)
	}
	made, ok := f.made[text]
	if !ok {
		if made, err = f.make(ctx, text); err != nil {
			return filter{}, refuse(Seccomp, "%v", err)
		}
		if len(f.made) >= mostFilters {
			clear(f.made)
		}
		f.made[text] = made
	}
	return made, made.refused
}

// make makes the filter of a profile, which may be none for a reason that stays. It returns an
// error if berth-seccomp could not be asked.
func (f *filters) make(ctx context.Context, text string) (filter, error) {
	out, err := f.run(ctx, text)
	if e := (*exec.ExitError)(nil); errors.As(err, &e) && e.Exited() {
		return filter{refused: refuse(Seccomp, "%v", err)}, nil
	}
	if err != nil {
		return filter{}, err
	}
	if len(out) < 12 || len(out)%8 != 4 {
		return filter{refused: refuse(Seccomp, "berth-seccomp wrote %d bytes", len(out))}, nil
	}
	made := filter{flags: binary.NativeEndian.Uint32(out), code: out[4:]}
	if err := made.letsReport(); err != nil {
		return filter{refused: err}, nil
	}
	return made, nil
}

// UnknownSyscalls returns those names that berth's libseccomp, and so runc's, does not know: a rule
// for one of them is left out of a filter. libexec is the directory of berth-seccomp.
func UnknownSyscalls(ctx context.Context, libexec string, names []string) ([]string, error) {
	var unknown []string
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		// it would be two to berth-seccomp
		odd := name == "" || strings.ContainsFunc(name, unicode.IsSpace)
		if odd {
			unknown = append(unknown, strconv.Quote(name))
		}
		return odd
	})
	out, err := newFilters(libexec).run(ctx, strings.Join(names, "\n"), "-u")
	return append(unknown, strings.Fields(string(out))...), err
}

func (f *filters) run(ctx context.Context, in string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, f.program, args...)
	cmd.Stdin, cmd.Stderr = strings.NewReader(in), &stderr
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run %s: %w: %s", f.program, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

var actions = map[specs.LinuxSeccompAction]uint32{
	specs.ActKill:        0,
	specs.ActKillThread:  0,
	specs.ActKillProcess: 0x80000000,
	specs.ActTrap:        0x00030000,
	specs.ActErrno:       0x00050000,
	specs.ActTrace:       0x7ff00000,
	specs.ActLog:         actLog,
	specs.ActAllow:       actAllow,
}

const (
	actLog   = 0x7ffc0000
	actAllow = 0x7fff0000
)

var operators = map[specs.LinuxSeccompOperator]int{
	specs.OpNotEqual: 1, specs.OpLessThan: 2, specs.OpLessEqual: 3, specs.OpEqualTo: 4,
	specs.OpGreaterEqual: 5, specs.OpGreaterThan: 6, specs.OpMaskedEqual: 7,
}

var arches = map[specs.Arch]uint32{
	specs.ArchX86: 0x40000003, specs.ArchX86_64: 0xc000003e, specs.ArchX32: 0x4000003e,
	specs.ArchARM: 0x40000028, specs.ArchAARCH64: 0xc00000b7,
}

// filterFlag is a flag of seccomp(2), and its name for berth-seccomp.
type filterFlag struct {
	bit  uint32
	name string
}

var filterFlags = map[specs.LinuxSeccompFlag]filterFlag{
	specs.LinuxSeccompFlagLog:       {unix.SECCOMP_FILTER_FLAG_LOG, "log"},
	specs.LinuxSeccompFlagSpecAllow: {unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW, "ssb"},
}

// flagsOf returns the flags of a profile, and refuses one with a flag that is not known, or with a
// listener, for which there is a flag as well.
func flagsOf(s *specs.LinuxSeccomp) ([]filterFlag, error) {
	if s.ListenerPath != "" || s.ListenerMetadata != "" {
		return nil, refuse(Seccomp, "it has a listener")
	}
	var out []filterFlag
	for _, flag := range s.Flags {
		f, ok := filterFlags[flag]
		if !ok {
			return nil, refuse(Seccomp, "it has a flag %q", flag)
		}
		out = append(out, f)
	}
	return out, nil
}

// natives are the architectures whose filters this room makes, with their own system call tables.
var natives = map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64}

// profile writes a profile for berth-seccomp.
func profile(s *specs.LinuxSeccomp) (string, error) {
	var b strings.Builder
	code := func(e *uint) int64 {
		if e == nil {
			return -1
		}
		return int64(*e & 0xffff)
	}
	action := func(name specs.LinuxSeccompAction) (uint32, error) {
		a, ok := actions[name]
		if !ok {
			return 0, refuse(Seccomp, "it has an action %q", name)
		}
		return a, nil
	}
	if _, ok := natives[runtime.GOARCH]; !ok {
		return "", refuse(Seccomp, "filters are not made for %s", runtime.GOARCH)
	}
	flags, err := flagsOf(s)
	if err != nil {
		return "", err
	}
	a, err := action(s.DefaultAction)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&b, "default %d %d\n", a, code(s.DefaultErrnoRet))
	for _, name := range s.Architectures {
		arch, ok := arches[name]
		if !ok {
			return "", refuse(Seccomp, "it has an architecture %q", name)
		}
		fmt.Fprintf(&b, "arch %d\n", arch)
	}
	if s.Flags == nil {
		b.WriteString("flag default\n")
	}
	for _, f := range flags {
		fmt.Fprintf(&b, "flag %s\n", f.name)
	}
	for _, call := range s.Syscalls {
		a, err := action(call.Action)
		if err != nil {
			return "", err
		}
		for _, name := range call.Names {
			if name == "" || len(name) > 63 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
				return "", refuse(Seccomp, "it has a system call %q", name)
			}
			fmt.Fprintf(&b, "rule %d %d %s", a, code(call.ErrnoRet), name)
			for _, arg := range call.Args {
				op, ok := operators[arg.Op]
				if !ok {
					return "", refuse(Seccomp, "it has an operator %q", arg.Op)
				}
				fmt.Fprintf(&b, " %d %d %d %d", arg.Index, op, arg.Value, arg.ValueTwo)
			}
			b.WriteByte('\n')
		}
	}
	return b.String(), nil
}

// letsReport returns nil if a filter lets berth-exec report a failure after it is loaded.
func (f filter) letsReport() error {
	for _, nr := range []uint32{unix.SYS_WRITE, unix.SYS_EXIT_GROUP} {
		if err := f.allows(nr); err != nil {
			return err
		}
	}
	return nil
}

// allows returns nil if a filter lets a system call through whose arguments are all zero. A filter
// that looks at the arguments may decide otherwise for others: then berth-exec ends silently, which
// berth notices.
func (f filter) allows(nr uint32) error {
	ret, err := f.verdict(arches[natives[runtime.GOARCH]], nr, [6]uint64{})
	if err != nil {
		return err
	}
	if ret != actAllow && ret != actLog {
		return refuse(Seccomp, "it does not allow system call %d, by which berth-exec reports failures", nr)
	}
	return nil
}

// verdict runs a filter as the kernel would.
func (f filter) verdict(arch, nr uint32, args [6]uint64) (uint32, error) {
	vm, err := bpf.NewVM(machineOf(f.code))
	if err != nil {
		return 0, refuse(Seccomp, "its filter cannot be run: %v", err)
	}
	return verdictOf(vm, arch, nr, args)
}

func verdictOf(vm *bpf.VM, arch, nr uint32, args [6]uint64) (uint32, error) {
	// struct seccomp_data, each word of it in the byte order in which the machine of package bpf
	// reads.
	words := []uint32{nr, arch, 0, 0}
	for _, a := range args {
		words = append(words, uint32(a), uint32(a>>32)) // its halves, in a little endian's order
	}
	var data []byte
	for _, w := range words {
		data = binary.BigEndian.AppendUint32(data, w)
	}
	ret, err := vm.Run(data)
	if err != nil {
		return 0, refuse(Seccomp, "its filter cannot be run: %v", err)
	}
	return uint32(ret), nil
}
