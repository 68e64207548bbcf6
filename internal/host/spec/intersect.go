// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Intersect returns a profile that answers each system call, with its arguments, with the more
// severe of the answers that base and own give. A profile is read as runc and libseccomp read it:
// of several rules without conditions for one call the first holds, and it outweighs rules with
// conditions; several conditions on one argument of one rule are alternatives; a call through a
// table that is not listed is killed. goarch names the node's architecture as Go does. If one
// profile cannot express the result, or if the answers of one are not certain, the error is
// ErrFailedPrecondition: a result that is looser than one of both is worse than none.
//
// A filter that denies the calls which it does not name answers with ENOSYS to numbers beyond those
// that it names, and so the numbers of calls decide which of those without a rule have to be named.
// There are four variants, and the caller has to prove one of them with the filters that libseccomp
// makes.
func Intersect(base, own *specs.LinuxSeccomp, goarch string) ([]*specs.LinuxSeccomp, error) {
	for name, s := range map[string]*specs.LinuxSeccomp{"the base profile": base, "the profile": own} {
		if err := canIntersect(s); err != nil {
			return nil, fmt.Errorf("%s: %w: %w", name, err, errdefs.ErrFailedPrecondition)
		}
	}
	var out []*specs.LinuxSeccomp
	for variant := range 4 {
		both, err := intersect(base, own, goarch, variant&1 != 0, variant&2 == 0)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
		}
		out = append(out, both)
	}
	return out, nil
}

// intersect makes one variant. ofBase and ofOwn are set if it names the calls that base or own
// alone names, and to which both together give the default answer.
func intersect(base, own *specs.LinuxSeccomp, goarch string, ofBase, ofOwn bool) (*specs.LinuxSeccomp, error) {
	d1, d2 := answerOf(base.DefaultAction, base.DefaultErrnoRet), answerOf(own.DefaultAction, own.DefaultErrnoRet)
	otherwise := severer(d1, d2)
	out := &specs.LinuxSeccomp{Architectures: bothTables(base, own, goarch), Flags: bothFlags(base.Flags, own.Flags)}
	out.DefaultAction, out.DefaultErrnoRet = otherwise.fields()
	of386 := slices.Contains(out.Architectures, specs.ArchX86)
	first, second := callsOf(base, of386), callsOf(own, of386)
	named := maps.Clone(first)
	maps.Copy(named, second)
	places := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		parts, err := intersectCall(first.of(name, d1), second.of(name, d2), otherwise)
		if err != nil {
			return nil, fmt.Errorf("system call %s: %w", name, err)
		}
		if len(parts) == 0 {
			_, inBase := first[name]
			_, inOwn := second[name]
			if !inOwn && !lenient(d2) && !ofBase || !inBase && !lenient(d1) && !ofOwn {
				continue
			}
			parts = []seccompPart{{answer: otherwise}}
		}
		for _, part := range parts {
			call := specs.LinuxSyscall{}
			call.Action, call.ErrnoRet = part.answer.fields()
			for _, i := range slices.Sorted(maps.Keys(part.on)) {
				arg := part.on[i].arg(i)
				if max(arg.Value, arg.ValueTwo) > math.MaxUint32 {
					return nil, fmt.Errorf("system call %s: %w", name, errInexpressible)
				}
				call.Args = append(call.Args, arg)
			}
			key := fmt.Sprint(part.answer, call.Args)
			at, ok := places[key]
			if !ok {
				at = len(out.Syscalls)
				places[key], out.Syscalls = at, append(out.Syscalls, call)
			}
			out.Syscalls[at].Names = append(out.Syscalls[at].Names, name)
		}
	}
	return out, nil
}

// canIntersect refuses a profile of which the answers are not certain.
func canIntersect(s *specs.LinuxSeccomp) error {
	if s.ListenerPath != "" || s.ListenerMetadata != "" {
		return errors.New("it has a listener")
	}
	if answerOf(s.DefaultAction, nil).rank < 0 {
		return fmt.Errorf("its default action is %s", s.DefaultAction)
	}
	for i, call := range s.Syscalls {
		if answerOf(call.Action, nil).rank < 0 {
			return fmt.Errorf("syscalls[%d] has the action %s", i, call.Action)
		}
		for _, arg := range call.Args {
			switch {
			case arg.Index > 5:
				return fmt.Errorf("syscalls[%d] has an argument %d, of which there are six", i, arg.Index)
			case max(arg.Value, arg.ValueTwo) > math.MaxUint32:
				// libseccomp compares the lower halves alone in the tables of 32 bits, x32 included.
				return fmt.Errorf("syscalls[%d] compares argument %d with a value of more than 32 bits", i, arg.Index)
			case arg.Op == specs.OpMaskedEqual && arg.ValueTwo&^arg.Value != 0:
				return fmt.Errorf("syscalls[%d] compares argument %d with bits that its mask takes away", i, arg.Index)
			case arg.Op == specs.OpGreaterEqual && arg.Value == 0, arg.Op == specs.OpMaskedEqual && arg.Value == 0:
				return fmt.Errorf("syscalls[%d] has a condition on argument %d that always holds", i, arg.Index)
			case !slices.Contains(seccompOperators, arg.Op):
				return fmt.Errorf("syscalls[%d] has an operator %q", i, arg.Op)
			}
		}
	}
	return nil
}

var seccompOperators = []specs.LinuxSeccompOperator{
	specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpEqualTo, specs.OpGreaterEqual, specs.OpGreaterThan, specs.OpMaskedEqual,
}

// seccompAnswer is the answer of a filter to a call.
type seccompAnswer struct {
	rank  int // the lower, the more severe
	errno uint
}

// bySeverity lists the actions as the kernel ranks them (seccomp(2)), the most severe first.
var bySeverity = []specs.LinuxSeccompAction{
	specs.ActKillProcess, specs.ActKillThread, specs.ActTrap, specs.ActErrno, specs.ActTrace, specs.ActLog, specs.ActAllow,
}

func answerOf(a specs.LinuxSeccompAction, errno *uint) seccompAnswer {
	if a == specs.ActKill {
		a = specs.ActKillThread
	}
	out := seccompAnswer{rank: slices.Index(bySeverity, a)}
	if a == specs.ActErrno || a == specs.ActTrace {
		out.errno = 1 // EPERM
		if errno != nil {
			out.errno = *errno & 0xffff
		}
	}
	return out
}

func (a seccompAnswer) fields() (specs.LinuxSeccompAction, *uint) {
	action := bySeverity[a.rank]
	if action == specs.ActErrno || action == specs.ActTrace {
		return action, &a.errno
	}
	return action, nil
}

// severer returns the more severe answer, and that of the later filter if both are as severe.
func severer(base, own seccompAnswer) seccompAnswer {
	if base.rank < own.rank {
		return base
	}
	return own
}

// lenient reports whether runc leaves calls that a filter does not know to its default answer.
func lenient(a seccompAnswer) bool {
	return slices.Contains([]specs.LinuxSeccompAction{specs.ActAllow, specs.ActLog, specs.ActTrace}, bySeverity[a.rank])
}

// bothTables returns the tables of system calls that both profiles list. The node's own one is
// always among them.
func bothTables(base, own *specs.LinuxSeccomp, goarch string) []specs.Arch {
	with := func(s *specs.LinuxSeccomp) []specs.Arch {
		return append(native(architectures(goarch)), s.Architectures...)
	}
	var out []specs.Arch
	for _, a := range with(own) {
		if slices.Contains(with(base), a) && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// bothFlags returns the flags of a result: it logs if one of both does, and leaves the mitigation
// of speculation off only if both do, where none at all stands for the OCI runtime's default, which
// is off.
func bothFlags(base, own []specs.LinuxSeccompFlag) []specs.LinuxSeccompFlag {
	out := []specs.LinuxSeccompFlag{}
	off := func(flags []specs.LinuxSeccompFlag) bool {
		return flags == nil || slices.Contains(flags, specs.LinuxSeccompFlagSpecAllow)
	}
	if slices.Contains(base, specs.LinuxSeccompFlagLog) || slices.Contains(own, specs.LinuxSeccompFlagLog) {
		out = append(out, specs.LinuxSeccompFlagLog)
	} else if base == nil && own == nil {
		return nil
	}
	if off(base) && off(own) {
		out = append(out, specs.LinuxSeccompFlagSpecAllow)
	}
	return out
}

// seccompPart is a part of the calls of one name, and the answer to it.
type seccompPart struct {
	on     conditions
	answer seccompAnswer
}

// calls are the rules of a profile by the name of the call.
type calls map[string][]seccompPart

// viaOne are the calls that i386 also has as one call, whose first argument names them, from 1 on.
// libseccomp makes a rule for that one of each rule for them, without its conditions.
var viaOne = map[string][]string{
	"socketcall": {
		"socket", "bind", "connect", "listen", "accept", "getsockname", "getpeername", "socketpair", "send", "recv",
		"sendto", "recvfrom", "shutdown", "setsockopt", "getsockopt", "sendmsg", "recvmsg", "accept4", "recvmmsg", "sendmmsg",
	},
	"ipc": {
		"semop", "semget", "semctl", "semtimedop", "", "", "", "", "", "", "msgsnd", "msgrcv", "msgget", "msgctl",
		"", "", "", "", "", "", "shmat", "shmdt", "shmget", "shmctl",
	},
}

// callsOf reads a profile as the OCI runtime does: it leaves out a rule whose answer is the
// default. of386 is set if the result is for the table of i386, too.
func callsOf(s *specs.LinuxSeccomp, of386 bool) calls {
	out, otherwise := calls{}, answerOf(s.DefaultAction, s.DefaultErrnoRet)
	for _, call := range s.Syscalls {
		for _, name := range call.Names {
			if _, ok := out[name]; !ok {
				out[name] = nil
			}
			answer := answerOf(call.Action, call.ErrnoRet)
			if answer == otherwise {
				continue
			}
			for one, list := range viaOne {
				if at := uint64(slices.Index(list, name) + 1); of386 && at > 0 {
					out[one] = append(out[one], seccompPart{conditions{0: {low: at, high: at}}, answer})
				}
			}
			on, twice := conditions{}, false
			for _, arg := range call.Args {
				_, has := on[arg.Index]
				twice = twice || has
				on[arg.Index] = conditionOf(arg)
			}
			if !twice {
				out[name] = append(out[name], seccompPart{on, answer})
				continue
			}
			for _, arg := range call.Args { // as runc does: each is a rule of its own
				out[name] = append(out[name], seccompPart{conditions{arg.Index: conditionOf(arg)}, answer})
			}
		}
	}
	return out
}

// of returns the parts of the calls of one name, and last the default answer for all others.
func (c calls) of(name string, otherwise seccompAnswer) []seccompPart {
	for _, r := range c[name] {
		if len(r.on) == 0 {
			return []seccompPart{r}
		}
	}
	return append(slices.Clone(c[name]), seccompPart{answer: otherwise})
}

// intersectCall combines the parts of the calls of one name in two profiles. It leaves out those
// with the default answer of the result. In each profile, and so in the result, no two parts with
// different answers may overlap, because libseccomp does not promise which one holds.
func intersectCall(first, second []seccompPart, otherwise seccompAnswer) ([]seccompPart, error) {
	for _, parts := range [][]seccompPart{first, second} {
		for i, a := range parts[:len(parts)-1] {
			for _, b := range parts[:i] {
				if _, empty, err := a.on.and(b.on); a.answer != b.answer && (err != nil || !empty) {
					return nil, errors.New("one profile has rules for it with different actions that overlap")
				}
			}
		}
	}
	var out []seccompPart
	for i, a := range first {
		for j, b := range second {
			answer := severer(a.answer, b.answer)
			if answer == otherwise {
				continue
			}
			areas, err := within([]conditions{{}}, first, i)
			if err == nil {
				areas, err = within(areas, second, j)
			}
			if err != nil {
				return nil, err
			}
			for _, on := range areas {
				out = append(out, seccompPart{on, answer})
			}
		}
	}
	return out, nil
}

// within cuts areas down to the part at of a profile's parts: that of a rule, or the rest, in which
// no rule holds.
func within(areas []conditions, parts []seccompPart, at int) ([]conditions, error) {
	var out []conditions
	if at < len(parts)-1 || len(parts) == 1 {
		for _, area := range areas {
			on, empty, err := area.and(parts[at].on)
			if err != nil {
				return nil, err
			}
			if !empty {
				out = append(out, on)
			}
		}
		return out, nil
	}
	out = areas
	for _, r := range parts[:at] {
		var left []conditions
		for _, area := range out {
			rest, err := area.without(r.on)
			if err != nil {
				return nil, err
			}
			left = append(left, rest...)
		}
		out = left
	}
	return out, nil
}

// conditions are those on the arguments of a call, by their index. All of them have to hold.
type conditions map[uint]condition

// and returns the conditions under which both hold.
func (c conditions) and(d conditions) (both conditions, empty bool, err error) {
	both = maps.Clone(c)
	if both == nil {
		both = conditions{}
	}
	for i, b := range d {
		a, ok := both[i]
		if !ok {
			both[i] = b
			continue
		}
		if both[i], empty, err = a.and(b); err != nil || empty {
			return nil, empty, err
		}
	}
	return both, false, nil
}

// without returns areas that do not overlap, which together are c without d.
func (c conditions) without(d conditions) ([]conditions, error) {
	var out []conditions
	area := c
	for _, i := range slices.Sorted(maps.Keys(d)) {
		others, err := d[i].not()
		if err != nil {
			// It is not needed if c lies outside of d anyway.
			if _, empty, e := c.and(d); e == nil && empty {
				return []conditions{c}, nil
			}
			return nil, err
		}
		outside, empty, err := area.and(conditions{i: others})
		if err != nil {
			return nil, err
		}
		if !empty {
			out = append(out, outside)
		}
		if area, empty, err = area.and(conditions{i: d[i]}); err != nil {
			return nil, err
		}
		if empty {
			break
		}
	}
	return out, nil
}

// condition is a set of values of an argument: those from low to high, or with masked bits, or all
// but one.
type condition struct {
	kind      conditionKind
	low, high uint64
	mask      uint64 // kind masked: x&mask == low
}

type conditionKind int

const (
	between conditionKind = iota // low <= x <= high
	allBut                       // x != low
	masked                       // x&mask == low
)

func conditionOf(arg specs.LinuxSeccompArg) condition {
	v := arg.Value
	switch arg.Op {
	case specs.OpNotEqual:
		return condition{kind: allBut, low: v}
	case specs.OpLessThan:
		if v == 0 {
			return condition{low: 1} // none
		}
		return condition{high: v - 1}
	case specs.OpLessEqual:
		return condition{high: v}
	case specs.OpGreaterEqual:
		return condition{low: v, high: math.MaxUint64}
	case specs.OpGreaterThan:
		return condition{low: v + 1, high: math.MaxUint64} // v has 32 bits
	case specs.OpMaskedEqual:
		return condition{kind: masked, low: arg.ValueTwo, mask: v}
	}
	return condition{low: v, high: v}
}

// arg returns the condition in the form of a profile.
func (c condition) arg(index uint) specs.LinuxSeccompArg {
	out := specs.LinuxSeccompArg{Index: index, Value: c.low}
	switch {
	case c.kind == allBut:
		out.Op = specs.OpNotEqual
	case c.kind == masked:
		out.Op, out.Value, out.ValueTwo = specs.OpMaskedEqual, c.mask, c.low
	case c.low == c.high:
		out.Op = specs.OpEqualTo
	case c.low == 0:
		out.Op, out.Value = specs.OpLessEqual, c.high
	default:
		out.Op = specs.OpGreaterEqual
	}
	return out
}

func (c condition) has(v uint64) bool {
	switch c.kind {
	case allBut:
		return v != c.low
	case masked:
		return v&c.mask == c.low
	}
	return c.low <= v && v <= c.high
}

var errInexpressible = errors.New("its conditions cannot be combined in one filter")

// and returns the values that both have. An error means that no single condition expresses them.
func (c condition) and(d condition) (both condition, empty bool, err error) {
	if c == d {
		return c, c.kind == between && c.low > c.high, nil
	}
	if c.kind > d.kind {
		c, d = d, c
	}
	switch {
	case c.kind == between && c.low > c.high:
		return c, true, nil
	case c.kind == between && c.low == c.high:
		return c, !d.has(c.low), nil
	case d.kind == between && d.low == d.high:
		return d, !c.has(d.low), nil
	case c.kind == between && d.kind == between:
		both = condition{low: max(c.low, d.low), high: min(c.high, d.high)}
	case c.kind == between && d.kind == allBut:
		both = c
		switch d.low {
		case c.low:
			both.low++
		case c.high:
			both.high--
		default:
			if c.has(d.low) {
				return both, false, errInexpressible
			}
		}
	case c.kind == allBut && d.kind == masked && !d.has(c.low):
		return d, false, nil
	case c.kind == masked && d.kind == masked:
		if common := c.mask & d.mask; c.low&common != d.low&common {
			return c, true, nil
		}
		return condition{kind: masked, low: c.low | d.low, mask: c.mask | d.mask}, false, nil
	default:
		return both, false, errInexpressible
	}
	if both.low > both.high {
		return both, true, nil
	}
	if both.low > 0 && both.high < math.MaxUint64 && both.low != both.high {
		return both, false, errInexpressible
	}
	return both, false, nil
}

// not returns the other values.
func (c condition) not() (condition, error) {
	switch {
	case c.kind == allBut:
		return condition{low: c.low, high: c.low}, nil
	case c.kind == masked && bits.OnesCount64(c.mask) == 1:
		return condition{kind: masked, low: c.low ^ c.mask, mask: c.mask}, nil
	case c.kind == masked:
		return c, errInexpressible
	case c.low > c.high: // none
		return condition{high: math.MaxUint64}, nil
	case c.low == c.high:
		return condition{kind: allBut, low: c.low}, nil
	case c.low == 0 && c.high == math.MaxUint64:
		return condition{low: 1}, nil
	case c.low == 0:
		return condition{low: c.high + 1, high: math.MaxUint64}, nil
	}
	return condition{high: c.low - 1}, nil
}
