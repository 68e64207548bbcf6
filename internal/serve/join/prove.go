// SPDX-License-Identifier: Apache-2.0

package join

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
)

// Prove returns nil if the filter of both answers each call, with its arguments, with the more
// severe of the answers that the filters of base and own give: the kernel would take that one if
// both were installed. It makes the three filters as runc does, and looks at what they compare:
// between two values that a filter compares a number with, it answers alike. libexec is the
// directory of berth-seccomp.
func Prove(ctx context.Context, libexec string, base, own, both *specs.LinuxSeccomp) error {
	var all [3]machine
	f := newFilters(libexec)
	for i, s := range []*specs.LinuxSeccomp{base, own, both} {
		text, err := profile(s)
		if err != nil {
			return err
		}
		made, err := f.run(ctx, text)
		if err != nil {
			return err
		}
		if len(made) < 12 || len(made)%8 != 4 {
			return fmt.Errorf("berth-seccomp wrote %d bytes", len(made))
		}
		all[i] = machineOf(made[4:])
	}
	return prove(all[0], all[1], all[2])
}

func prove(base, own, both machine) error {
	all := []machine{base, own, both}
	tables := map[uint32]bool{0: true}
	for _, m := range all {
		cuts, err := m.cuts(nil)
		if err != nil {
			return err
		}
		maps.Copy(tables, valuesOf(cuts[wordArch]))
	}
	for arch := range tables {
		numbers := map[uint32]bool{0: true}
		for _, m := range all {
			cuts, err := m.cuts(map[int]uint32{wordArch: arch})
			if err != nil {
				return err
			}
			maps.Copy(numbers, valuesOf(cuts[wordNumber]))
		}
		for nr := range numbers {
			if err := proveCall(all, arch, nr); err != nil {
				return err
			}
		}
	}
	return nil
}

// mostPoints bounds how many combinations of arguments of one call are compared.
const mostPoints = 1 << 16

func proveCall(all []machine, arch, nr uint32) error {
	known := map[int]uint32{wordArch: arch, wordNumber: nr}
	cuts := map[int][]cut{}
	for _, m := range all {
		more, err := m.cuts(known)
		if err != nil {
			return err
		}
		for w, list := range more {
			cuts[w] = append(cuts[w], list...)
		}
	}
	points := [][words]uint32{{wordNumber: nr, wordArch: arch}}
	for _, w := range slices.Sorted(maps.Keys(cuts)) {
		values := valuesOf(cuts[w])
		if len(points)*len(values) > mostPoints {
			return fmt.Errorf("system call %d of table %#x has too many conditions to be compared", nr, arch)
		}
		var next [][words]uint32
		for _, p := range points {
			for v := range values {
				p[w] = v
				next = append(next, p)
			}
		}
		points = next
	}
	for _, p := range points {
		a, b, got := all[0].answer(p), all[1].answer(p), all[2].answer(p)
		if int32(nr) < 0 && denies(got) {
			continue
		}
		if !isSeverer(a, b, got) {
			return fmt.Errorf("system call %d of table %#x with the arguments %x: the profiles answer %#x and %#x, and their filter %#x", nr, arch, p[4:], a, b, got)
		}
	}
	return nil
}

// isSeverer reports whether got is the more severe of two answers, or one of both if they are as
// severe (seccomp(2)).
func isSeverer(a, b, got uint32) bool {
	switch x, y := severity(a), severity(b); {
	case x < y:
		return got == a
	case x > y:
		return got == b
	}
	return got == a || got == b
}

// severity ranks an answer, the most severe first. Its lower half is data.
func severity(answer uint32) int32 { return int32(answer & 0xffff0000) }

// denies reports whether a call with an answer does nothing. For a negative number that is enough:
// no kernel has a call of such a number, and libseccomp and the part of the filter that runc writes
// do not agree on the table that it belongs to.
func denies(answer uint32) bool { return severity(answer) < int32(actions[specs.ActTrace]) }

// The words of struct seccomp_data, in the order of a little endian.
const (
	wordNumber = 0
	wordArch   = 1
	words      = 16
)

// machine is a filter that can be run.
type machine []bpf.Instruction

func machineOf(code []byte) machine {
	var m machine
	for at := 0; at < len(code); at += 8 {
		m = append(m, bpf.RawInstruction{
			Op: binary.NativeEndian.Uint16(code[at:]),
			Jt: code[at+2],
			Jf: code[at+3],
			K:  binary.NativeEndian.Uint32(code[at+4:]),
		}.Disassemble())
	}
	return m
}

// cut is a comparison of a word with a constant.
type cut struct{ mask, value uint32 }

// valuesOf returns values of a word of which two that the cuts do not tell apart have one in
// common.
func valuesOf(cuts []cut) map[uint32]bool {
	out := map[uint32]bool{0: true, ^uint32(0): true}
	for _, c := range cuts {
		for _, v := range []uint32{c.value - 1, c.value, c.value + 1, c.value | ^c.mask, c.value ^ c.mask&-c.mask} {
			out[v] = true
		}
	}
	var masks []cut
	for _, c := range cuts {
		if c.mask != ^uint32(0) && !slices.Contains(masks, c) {
			masks = append(masks, c)
		}
	}
	for _, c := range masks {
		for v := range maps.Clone(out) {
			if len(out) < mostPoints {
				out[v&^c.mask|c.value] = true
			}
		}
	}
	return out
}

// cuts returns the comparisons of the words that are not known, on all paths that the known ones
// leave.
func (m machine) cuts(known map[int]uint32) (map[int][]cut, error) {
	out := map[int][]cut{}
	type place struct {
		at    int
		word  int // that A holds a part of; -1: A is known
		mask  uint32
		value uint32
	}
	seen := map[place]bool{}
	todo := []place{{word: -1}}
	for len(todo) > 0 {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if p.at >= len(m) || seen[p] {
			continue
		}
		seen[p] = true
		next := p
		next.at++
		switch i := m[p.at].(type) {
		case bpf.LoadAbsolute:
			w := int(i.Off) / 4
			v, ok := known[w]
			if next.word, next.mask, next.value = -1, 0, v; !ok {
				next.word, next.mask = w, ^uint32(0)
			}
			todo = append(todo, next)
		case bpf.ALUOpConstant:
			if i.Op != bpf.ALUOpAnd {
				return nil, fmt.Errorf("a filter has the operation %v", i)
			}
			next.mask, next.value = next.mask&i.Val, next.value&i.Val
			todo = append(todo, next)
		case bpf.Jump:
			next.at += int(i.Skip)
			todo = append(todo, next)
		case bpf.JumpIf:
			yes, no := next, next
			yes.at, no.at = next.at+int(i.SkipTrue), next.at+int(i.SkipFalse)
			switch {
			case p.word >= 0:
				c := cut{p.mask, i.Val}
				if i.Cond == bpf.JumpBitsSet || i.Cond == bpf.JumpBitsNotSet {
					c = cut{p.mask & i.Val, 0}
				}
				out[p.word] = append(out[p.word], c)
				todo = append(todo, yes, no)
			case jumps(i, p.value):
				todo = append(todo, yes)
			default:
				todo = append(todo, no)
			}
		case bpf.RetConstant:
		default:
			return nil, fmt.Errorf("a filter has the instruction %v", i)
		}
	}
	return out, nil
}

func jumps(i bpf.JumpIf, a uint32) bool {
	switch i.Cond {
	case bpf.JumpEqual:
		return a == i.Val
	case bpf.JumpNotEqual:
		return a != i.Val
	case bpf.JumpGreaterThan:
		return a > i.Val
	case bpf.JumpLessThan:
		return a < i.Val
	case bpf.JumpGreaterOrEqual:
		return a >= i.Val
	case bpf.JumpLessOrEqual:
		return a <= i.Val
	case bpf.JumpBitsSet:
		return a&i.Val != 0
	default: // bpf.JumpBitsNotSet
		return a&i.Val == 0
	}
}

// answer runs the filter, of which cuts has seen that it has no other instructions. A filter that
// does not end is not one that the kernel takes, and it answers as if it killed.
func (m machine) answer(data [words]uint32) uint32 {
	var a uint32
	for at := 0; at < len(m); at++ {
		switch i := m[at].(type) {
		case bpf.LoadAbsolute:
			a = data[i.Off/4%words]
		case bpf.ALUOpConstant:
			a &= i.Val
		case bpf.Jump:
			at += int(i.Skip)
		case bpf.JumpIf:
			if jumps(i, a) {
				at += int(i.SkipTrue)
			} else {
				at += int(i.SkipFalse)
			}
		case bpf.RetConstant:
			return i.Val
		}
	}
	return 0
}
