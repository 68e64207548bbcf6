// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"regexp"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SELinux allocates labels. A label that [ForSandbox] or [ForContainer] put into
// Process.SelinuxLabel is the caller's to release, once nothing runs under it.
type SELinux interface {
	// Init returns a label for a process and one for its files. The options, such as type:spc_t or
	// level:s0:c1,c2, take the place of the default's parts; without a level a category that
	// nothing else on this host has is allocated.
	Init(options []string) (process, mount string, err error)
	// OptionsOf returns the options by which another process gets the same label.
	OptionsOf(process string) ([]string, error)
}

var (
	labelPart  = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
	labelLevel = regexp.MustCompile(`^[A-Za-z0-9_.,:-]+$`)
)

// seLinux labels a process: as the request asks, else like other, the label of the pod's sandbox,
// else with the host's default. If the host does not have SELinux the request is degraded and not
// refused: workloads ask for labels wherever they are deployed, and no other confinement hangs on
// it.
func seLinux(h Host, s *specs.Spec, o *runtimeapi.SELinuxOption, other string) ([]Degraded, error) {
	var options []string
	for _, p := range []struct {
		name, value string
		form        *regexp.Regexp
	}{
		{"user", o.GetUser(), labelPart},
		{"role", o.GetRole(), labelPart},
		{"type", o.GetType(), labelPart},
		{"level", o.GetLevel(), labelLevel},
	} {
		if p.value == "" {
			continue
		}
		if !p.form.MatchString(p.value) {
			return nil, fmt.Errorf("selinux_options.%s: %q is not one: %w", p.name, p.value, errdefs.ErrInvalidArgument)
		}
		options = append(options, p.name+":"+p.value)
	}
	if h.SELinux == nil && len(options) > 0 {
		return []Degraded{{
			What: "selinux_options",
			Why:  "this host does not have SELinux",
		}}, nil
	}
	if h.SELinux != nil && len(options) == 0 && other != "" {
		var err error
		if options, err = h.SELinux.OptionsOf(other); err != nil {
			return nil, fmt.Errorf("selinux_options: read label %q of sandbox: %w", other, err)
		}
	}
	return nil, applySELinux(h, s, options)
}

func applySELinux(h Host, s *specs.Spec, options []string) error {
	if h.SELinux == nil {
		return nil
	}
	var err error
	if s.Process.SelinuxLabel, s.Linux.MountLabel, err = h.SELinux.Init(options); err != nil {
		return fmt.Errorf("selinux_options: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return nil
}
