// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"berth/test/command"
)

// filterOf has the kernel asked for the seccomp filter of a process. The process is a child of this
// one, where somebody waits for its end and would take its stop for that: another process traces
// it.
func filterOf(t *testing.T, pid int) (code []bpf.RawInstruction) {
	t.Helper()
	cmd := command.New(t, "/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprint(filterVariable, "=", pid))
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, errOf(err))
	}
	if err := json.Unmarshal(out, &code); err != nil {
		t.Fatal(err)
	}
	return code
}

// filterVariable makes a process of this test that writes the filter of another process, as JSON.
const filterVariable = "BERTH_TEST_FILTER_OF"

// writeFilter does that (ptrace(2), PTRACE_SECCOMP_GET_FILTER).
func writeFilter(of string) error {
	pid, err := strconv.Atoi(of)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // which traces
	if err := unix.PtraceAttach(pid); err != nil {
		return fmt.Errorf("trace %d: %w", pid, err)
	}
	if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != nil {
		return fmt.Errorf("wait until %d has stopped: %w", pid, err)
	}
	var code [4096 * 8]byte
	n, _, errno := unix.Syscall6(unix.SYS_PTRACE, 0x420c, uintptr(pid), 0, uintptr(unsafe.Pointer(&code)), 0, 0)
	if errno != 0 {
		return fmt.Errorf("ask for the filter of %d: %w", pid, errno)
	}
	var out []bpf.RawInstruction
	for at := range int(n) {
		b := code[8*at:]
		out = append(out, bpf.RawInstruction{Op: binary.NativeEndian.Uint16(b), Jt: b[2], Jf: b[3], K: binary.NativeEndian.Uint32(b[4:])})
	}
	return errors.Join(unix.PtraceDetach(pid), json.NewEncoder(os.Stdout).Encode(out))
}

// machine runs a filter as the kernel would.
func machine(t *testing.T, code []bpf.RawInstruction) func(arch, nr uint32, arg uint64) int {
	t.Helper()
	program, _ := bpf.Disassemble(code)
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	return func(arch, nr uint32, arg uint64) int {
		var data []byte
		for _, word := range []uint32{nr, arch, 0, 0} {
			data = binary.BigEndian.AppendUint32(data, word)
		}
		for range 6 {
			data = binary.BigEndian.AppendUint32(data, uint32(arg))
			data = binary.BigEndian.AppendUint32(data, uint32(arg>>32))
		}
		verdict, err := vm.Run(data)
		if err != nil {
			t.Fatal(err)
		}
		return verdict
	}
}

// changed is a profile that was made in a way.
func changed(s *specs.LinuxSeccomp, change func(s *specs.LinuxSeccomp)) *specs.LinuxSeccomp {
	change(s)
	return s
}

// PROPERTIES 45: a filter may differ from the OCI runtime's in its order, and not in what it
// decides.
func TestAFilterDecidesAsThatOfTheOCIRuntime(t *testing.T) {
	profiles := map[string]*specs.LinuxSeccomp{
		"the default":                    seccomp.DefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: some}}}),
		"that of a privileged container": seccomp.DefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: all()}}),
		"what is allowed":                allowList(),
		"what is denied":                 denyList(),
		"of one architecture":            changed(allowList(), func(s *specs.LinuxSeccomp) { s.Architectures = s.Architectures[:1] }),
		"of no architecture":             changed(allowList(), func(s *specs.LinuxSeccomp) { s.Architectures = nil }),
		"of the others alone":            changed(allowList(), func(s *specs.LinuxSeccomp) { s.Architectures = s.Architectures[1:] }),
		"an architecture twice":          changed(allowList(), func(s *specs.LinuxSeccomp) { s.Architectures = append(s.Architectures, s.Architectures...) }),
		"ENOSYS":                         changed(allowList(), func(s *specs.LinuxSeccomp) { s.DefaultErrnoRet = ptr(uint(unix.ENOSYS)) }),
		"an error beyond all":            changed(allowList(), func(s *specs.LinuxSeccomp) { s.DefaultErrnoRet = ptr(uint(0x50026)) }),
		"log":                            changed(denyList(), func(s *specs.LinuxSeccomp) { s.DefaultAction = specs.ActLog }),
		"kill": changed(denyList(), func(s *specs.LinuxSeccomp) {
			s.Syscalls[0].Action, s.Syscalls[1].Action = specs.ActKill, specs.ActKillProcess
			s.Syscalls[0].ErrnoRet = nil // crun refuses one here
		}),
		"trace": changed(denyList(), func(s *specs.LinuxSeccomp) { s.Syscalls[0].Action = specs.ActTrace }),
	}
	var args []uint64
	for _, n := range []uint64{0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 16, 38, 40, 0x2000, 0x20000, 0x20008, 0x7e020000, 0x10000000, 0xffffffff} {
		args = append(args, n, n|1<<32)
	}
	args = append(args, ^uint64(0))
	var numbers []uint32
	for n := range uint32(600) {
		numbers = append(numbers, n, n|1<<30)
	}
	numbers = append(numbers, 983042, 983045, 0x3fffffff, 0x7fffffff, 0x80000000, 0xffffffff)
	for _, name := range slices.Sorted(maps.Keys(profiles)) {
		t.Run(name, func(t *testing.T) {
			ct := start(t, func(s *specs.Spec, _ string) { s.Linux.Seccomp = profiles[name] })
			var filters [2]func(arch, nr uint32, arg uint64) int
			for i, by := range []way{byOCI, byHelper} {
				r := by(ct, []string{"/probe", "pause"})
				if r.failed != nil {
					t.Fatal(r.failed)
				}
				code := filterOf(t, r.pid)
				t.Logf("%d instructions", len(code))
				filters[i] = machine(t, code)
				r.kill()
				r.code()
			}
			var differ []string
			for _, arch := range []uint32{unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_AARCH64, unix.AUDIT_ARCH_ARM, 0} {
				for _, nr := range numbers {
					args := args
					if nr >= 1<<30 || arch != unix.AUDIT_ARCH_X86_64 && arch != unix.AUDIT_ARCH_I386 {
						args = args[:3] // these look at no argument, or as those do
					}
					for _, arg := range args {
						if want, got := filters[0](arch, nr, arg), filters[1](arch, nr, arg); got != want {
							differ = append(differ, fmt.Sprintf("arch %x, call %d with %x: %x, and by the OCI runtime %x", arch, nr, arg, got, want))
						}
					}
				}
			}
			if len(differ) > 0 {
				t.Errorf("%d decisions differ: %s", len(differ), strings.Join(differ[:min(10, len(differ))], "\n"))
			}
		})
	}
}
