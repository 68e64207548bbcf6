// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/base/inroot"
)

// maxBase bounds the file of a base specification, in bytes.
const maxBase = 1 << 20

// LoadBase reads the specification that the containers of a handler start from.
func LoadBase(path string) (*specs.Spec, error) {
	b, err := inroot.ReadGiven(path, maxBase)
	if err != nil {
		return nil, err
	}
	if !utf8.Valid(b) {
		return nil, fmt.Errorf("%s is not UTF-8: %w", path, errdefs.ErrInvalidArgument)
	}
	s := &specs.Spec{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%s is not an OCI specification: %w: %w", path, err, errdefs.ErrInvalidArgument)
	}
	return s, nil
}

// base returns the specification to start from: a copy of from, which may be nil, without the
// fields that CRI decides.
func base(h Host, from *specs.Spec) *specs.Spec {
	s := &specs.Spec{}
	if from != nil {
		b, err := json.Marshal(from)
		if err == nil {
			err = json.Unmarshal(b, s)
		}
		if err != nil {
			panic(fmt.Sprintf("a specification that was read from JSON cannot be copied: %v", err))
		}
	}
	s.Version = specs.Version
	if s.Process == nil {
		s.Process = &specs.Process{}
	}
	if s.Linux == nil {
		s.Linux = &specs.Linux{}
	}
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	if len(s.Process.Rlimits) == 0 {
		s.Process.Rlimits = rlimits(h)
	}
	s.Hostname, s.Domainname = "", ""
	s.Process.Capabilities, s.Process.ApparmorProfile, s.Process.SelinuxLabel = nil, "", ""
	s.Linux.Seccomp, s.Linux.MountLabel, s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = nil, "", nil, nil
	s.Linux.UIDMappings, s.Linux.GIDMappings, s.Linux.Namespaces = nil, nil, nil
	return s
}

// withBase returns the default mounts, overridden by those of a base specification.
func withBase(defaults, of []specs.Mount) []specs.Mount {
	all := slices.DeleteFunc(slices.Clone(defaults), func(m specs.Mount) bool {
		return slices.ContainsFunc(of, func(b specs.Mount) bool { return b.Destination == m.Destination })
	})
	return append(all, of...)
}

// annotate adds annotations to the specification.
func annotate(s *specs.Spec, more map[string]string) { maps.Copy(s.Annotations, more) }
