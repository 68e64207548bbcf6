// SPDX-License-Identifier: Apache-2.0

package join

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Runtime is an OCI runtime, as its command features describes it. The zero Runtime is one that has
// not answered yet, or that this room does not know.
type Runtime struct {
	Name       string // "runc" or "crun"
	Version    string
	Libseccomp string // the version of the library by which it makes filters
}

const (
	runc = "runc"
	crun = "crun"
)

// covered are the series of each OCI runtime whose exec this room knows: those that test/exec was
// run with. It runs with runc and with crun 1.21 again and again, and did with crun 1.28, by hand.
var covered = map[string][]string{runc: {"1.5"}, crun: {"1.21", "1.28"}}

// check returns a [Refusal] unless r is covered. A release candidate, or a build between two
// releases, is not.
func (r Runtime) check() error {
	for _, series := range covered[r.Name] {
		if (r.Version == series || strings.HasPrefix(r.Version, series+".")) && !strings.ContainsAny(r.Version, "-+") {
			return nil
		}
	}
	return refuse(OCIRuntime, "its OCI runtime is not known to be runc %s or crun %s, but %q %q",
		strings.Join(covered[runc], ", "), strings.Join(covered[crun], ", "), r.Name, r.Version)
}

// records are the files that an OCI runtime has of each container, among its records.
var records = map[string]string{runc: "state.json", crun: "status"}

// made returns a [Refusal] unless r has made the container whose records are in dir. The
// configuration may name another OCI runtime since then.
func (r Runtime) made(dir string) error {
	if _, err := os.Lstat(filepath.Join(dir, records[r.Name])); err != nil {
		return refuse(OCIRuntime, "look for the container among the records of %s: %v", r.Name, err)
	}
	return nil
}

// asCrun changes a plan of a process as runc makes it into one of a process as crun makes it. Other
// differences are in environment and in berth-exec, which looks at [head.Crun].
func (p *plan) asCrun(id string, s *specs.Spec) error {
	for name := range s.Annotations {
		if strings.HasPrefix(name, "run.oci.") || strings.HasPrefix(name, "module.wasm.") {
			return refuse(Specification, "it has the annotation %s, on which crun acts", name)
		}
	}
	if p.profile != "" && s.Process.NoNewPrivileges && confined() {
		return refuse(Specification, "crun adds its AppArmor profile to that of berth")
	}
	p.head.Crun = 1
	p.keyring = id
	if p.head.Umask == asItIs {
		p.head.Umask = 0o022
	}
	return nil
}

// confined reports whether this process may have an AppArmor profile, which crun has from it.
func confined() bool {
	b, err := os.ReadFile("/proc/self/attr/current")
	return err != nil || strings.TrimRight(string(b), "\x00\n") != "unconfined"
}

// mostInstructions is how long the kernel lets a filter be (BPF_MAXINSNS).
const mostInstructions = 4096

// kept returns the filter that crun has made of a profile when it made the container, which its
// exec loads again. It is in dir.
func kept(dir string, s *specs.LinuxSeccomp) (filter, error) {
	if s == nil {
		return filter{}, nil
	}
	flags, err := flagsOf(s)
	if err != nil {
		return filter{}, err
	}
	var f filter
	if s.Flags == nil {
		f.flags = unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
	}
	for _, flag := range flags {
		f.flags |= flag.bit
	}
	file, err := os.Open(filepath.Join(dir, "seccomp.bpf"))
	if err != nil {
		return filter{}, refuse(Seccomp, "read the filter that crun has made: %v", err)
	}
	defer file.Close()
	if f.code, err = io.ReadAll(io.LimitReader(file, 8*mostInstructions+1)); err != nil {
		return filter{}, refuse(Seccomp, "read the filter that crun has made: %v", err)
	}
	if n := len(f.code); n == 0 || n%8 != 0 || n > 8*mostInstructions {
		return filter{}, refuse(Seccomp, "the filter that crun has made has %d bytes", n)
	}
	return f, f.letsReport()
}
