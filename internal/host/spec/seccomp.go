// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// MaxSeccomp is how large a seccomp profile may be, in bytes.
const MaxSeccomp = 1 << 20

// seccompArches are the system call tables of each architecture, its own first, by the name that Go
// has for it. A filter kills a process that calls through a table that is not listed.
var seccompArches = map[string][]specs.Arch{
	"amd64":   {specs.ArchX86_64, specs.ArchX86, specs.ArchX32},
	"arm64":   {specs.ArchAARCH64, specs.ArchARM},
	"loong64": {specs.ArchLOONGARCH64},
	"ppc64le": {specs.ArchPPC64LE},
	"riscv64": {specs.ArchRISCV64},
	"s390x":   {specs.ArchS390X, specs.ArchS390},
}

// architectures returns the tables of an architecture; none means its own one alone to an OCI
// runtime.
func architectures(goarch string) []specs.Arch { return slices.Clone(seccompArches[goarch]) }

// native returns the first of list, the architecture's own table.
func native(list []specs.Arch) []specs.Arch { return list[:min(1, len(list))] }

// seccompActions are the possible actions of a rule.
var seccompActions = []specs.LinuxSeccompAction{
	specs.ActKill, specs.ActKillProcess, specs.ActKillThread, specs.ActTrap, specs.ActErrno, specs.ActTrace, specs.ActAllow, specs.ActLog, specs.ActNotify,
}

// seccompFile is a profile file: the OCI form, and the fields of Docker's form that can be
// translated.
type seccompFile struct {
	specs.LinuxSeccomp
	ArchMap []struct {
		Architecture     specs.Arch   `json:"architecture"`
		SubArchitectures []specs.Arch `json:"subArchitectures"`
	} `json:"archMap"`
	Syscalls []seccompRule `json:"syscalls"`
}

type seccompRule struct {
	specs.LinuxSyscall
	Name     string                     `json:"name"` // instead of names, in old files
	Includes map[string]json.RawMessage `json:"includes"`
	Excludes map[string]json.RawMessage `json:"excludes"`
}

// CheckPulled returns an error if b is not a profile that can be pulled from a registry: one in the
// OCI's form alone, with at most rules entries of system calls, and without a listener. A field
// that the OCI's form does not have is refused, because it may be a condition: to leave it out
// could permit more than its author meant. Names of system calls are not looked at, as an OCI
// runtime leaves out those that it does not know; see Host.UnknownSyscalls for those that are to be
// denied.
func CheckPulled(b []byte, rules int) error {
	var s specs.LinuxSeccomp
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return fmt.Errorf("it is not a seccomp profile of the OCI: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("something follows the profile: %w", errdefs.ErrInvalidArgument)
	}
	if len(s.Syscalls) > rules {
		return fmt.Errorf("syscalls has %d entries, more than %d: %w", len(s.Syscalls), rules, errdefs.ErrInvalidArgument)
	}
	if _, err := ParseSeccomp(b, ""); err != nil {
		return err
	}
	if err := canIntersect(&s); err != nil {
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	for _, a := range s.Architectures {
		if !slices.Contains(allArches, a) {
			return fmt.Errorf("architecture %q is not known: %w", a, errdefs.ErrInvalidArgument)
		}
	}
	for _, f := range s.Flags {
		if f != specs.LinuxSeccompFlagLog && f != specs.LinuxSeccompFlagSpecAllow {
			return fmt.Errorf("flag %q is not known, or is for a listener: %w", f, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// allArches are the tables that the OCI names.
var allArches = []specs.Arch{
	specs.ArchX86, specs.ArchX86_64, specs.ArchX32, specs.ArchARM, specs.ArchAARCH64, specs.ArchMIPS, specs.ArchMIPS64, specs.ArchMIPS64N32,
	specs.ArchMIPSEL, specs.ArchMIPSEL64, specs.ArchMIPSEL64N32, specs.ArchPPC, specs.ArchPPC64, specs.ArchPPC64LE, specs.ArchS390, specs.ArchS390X,
	specs.ArchPARISC, specs.ArchPARISC64, specs.ArchRISCV64, specs.ArchLOONGARCH64, specs.ArchM68K, specs.ArchSH, specs.ArchSHEB,
}

// ParseSeccomp reads a profile in the OCI's form, for a host of architecture goarch. Of Docker's
// form it takes archMap. Conditional rules (includes and excludes) are refused, because as plain
// rules they would allow calls that must be denied. If b is not a profile, the error is
// ErrInvalidArgument.
func ParseSeccomp(b []byte, goarch string) (*specs.LinuxSeccomp, error) {
	if len(b) > MaxSeccomp {
		return nil, fmt.Errorf("it has more than %d bytes: %w", MaxSeccomp, errdefs.ErrInvalidArgument)
	}
	var f seccompFile
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("it is not a seccomp profile: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	out := f.LinuxSeccomp
	if !slices.Contains(seccompActions, out.DefaultAction) {
		return nil, fmt.Errorf("defaultAction %q is not an action: %w", out.DefaultAction, errdefs.ErrInvalidArgument)
	}
	out.Syscalls = make([]specs.LinuxSyscall, len(f.Syscalls))
	for i, r := range f.Syscalls {
		out.Syscalls[i] = r.LinuxSyscall
		if len(r.Names) == 0 && r.Name != "" {
			out.Syscalls[i].Names = []string{r.Name}
		}
		if len(r.Includes)+len(r.Excludes) > 0 {
			return nil, fmt.Errorf("syscalls[%d]: rules with includes or excludes are not supported; write one profile for each case: %w", i, errdefs.ErrInvalidArgument)
		}
		if !slices.Contains(seccompActions, r.Action) {
			return nil, fmt.Errorf("syscalls[%d]: action %q is not one: %w", i, r.Action, errdefs.ErrInvalidArgument)
		}
	}
	if len(f.ArchMap) > 0 && len(out.Architectures) == 0 {
		out.Architectures = native(architectures(goarch))
		for _, m := range f.ArchMap {
			if slices.Contains(out.Architectures, m.Architecture) {
				out.Architectures = append(out.Architectures, m.SubArchitectures...)
				break
			}
		}
	}
	return &out, nil
}
