// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"debug/elf"
	"path/filepath"
	"slices"
	"testing"

	"berth/test/node"
)

// The programs in C run as root, some of them beside a container: they were at the same addresses
// each time, with tables of jumps that could be written to.
func TestTheHelpersAreHardened(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"pause", "berth-logger", "berth-exec", "berth-seccomp"} {
		isHardened(t, name)
	}
}

func isHardened(t *testing.T, name string) {
	t.Helper()
	f, err := elf.Open(filepath.Join(node.Module(t), "build/libexec", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	has := map[elf.ProgType]elf.ProgFlag{}
	for _, p := range f.Progs {
		has[p.Type] = p.Flags
	}
	flags, err := f.DynValue(elf.DT_FLAGS_1)
	if err != nil {
		t.Fatal(name, err)
	}
	stack, said := has[elf.PT_GNU_STACK]
	_, relro := has[elf.PT_GNU_RELRO]
	_, dynamic := has[elf.PT_INTERP]
	for want, ok := range map[string]bool{
		"at another address each time (PIE)": f.Type == elf.ET_DYN && slices.Contains(flags, uint64(elf.DF_1_PIE|elf.DF_1_NOW)),
		"read-only after it was relocated":   relro,
		"with a stack that is only data":     said && stack&elf.PF_X == 0,
		"static":                             !dynamic,
	} {
		if !ok {
			t.Errorf("%s is not %s", name, want)
		}
	}
}
