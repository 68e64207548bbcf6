// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/runtime-tools/generate"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// adjust returns a copy of a specification with the adjustments of plug-ins. An adjustment that
// berth cannot make is refused by name, and the result is checked.
func (s *Service) adjust(oci *specs.Spec, a *api.ContainerAdjustment) (*specs.Spec, error) {
	r := a.GetLinux().GetResources()
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"linux.resources.blockio_class", r.GetBlockioClass() != nil},
		{"linux.resources.rdt_class", r.GetRdtClass() != nil},
		{"CDI devices", len(a.GetCDIDevices()) > 0 && s.cfg.InjectCDI == nil},
	} {
		if f.set {
			return nil, fmt.Errorf("%s: berth is not configured for that: %w", f.name, errdefs.ErrFailedPrecondition)
		}
	}
	adjusted, err := clone(oci)
	if err != nil {
		return nil, err
	}
	var options []generate.GeneratorOption
	if s.cfg.InjectCDI != nil {
		options = append(options, generate.WithCDIDeviceInjector(s.cfg.InjectCDI))
	}
	if err := generate.SpecGenerator(&generator{adjusted}, options...).Adjust(a); err != nil {
		return nil, err
	}
	return adjusted, check(oci, adjusted)
}

func clone(oci *specs.Spec) (*specs.Spec, error) {
	b, err := json.Marshal(oci)
	if err != nil {
		return nil, fmt.Errorf("copy the specification: %w", err)
	}
	out := &specs.Spec{}
	if err := json.Unmarshal(b, out); err != nil {
		return nil, fmt.Errorf("copy the specification: %w", err)
	}
	if out.Process == nil {
		out.Process = &specs.Process{}
	}
	if out.Linux == nil {
		out.Linux = &specs.Linux{}
	}
	if out.Linux.Resources == nil {
		out.Linux.Resources = &specs.LinuxResources{}
	}
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	return out, nil
}

// ours is the beginning of the annotations by which node agents and berth recognise a container.
const ours = "io.kubernetes.cri."

// check returns the faults of a specification that plug-ins have changed. A plug-in is trusted to
// choose devices, mounts and limits. It must not break berth's assumptions: the namespaces by which
// the end of a container is known, the cgroup in which its OOM kills are counted, the annotations
// that name the container.
func check(before, after *specs.Spec) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(after.Process.Args) == 0 {
		bad("process.args is empty")
	}
	for _, list := range [][]string{after.Process.Args, after.Process.Env} {
		for _, v := range list {
			if strings.ContainsRune(v, 0) {
				bad("process has an argument or a variable with a zero byte: %.40q", v)
			}
		}
	}
	for _, e := range after.Process.Env {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" {
			bad("process.env has %.40q, which is not NAME=VALUE", e)
		}
	}
	if s := after.Process.OOMScoreAdj; s != nil && (*s < -1000 || *s > 1000) {
		bad("process.oomScoreAdj %d is not between -1000 and 1000", *s)
	}
	for _, l := range after.Process.Rlimits {
		if !strings.HasPrefix(l.Type, "RLIMIT_") || l.Soft > l.Hard {
			bad("process.rlimits has %s with %d above %d, or of an unknown kind", l.Type, l.Soft, l.Hard)
		}
	}
	for _, m := range after.Mounts {
		if !filepath.IsAbs(m.Destination) || filepath.Clean(m.Destination) == "/" || strings.ContainsRune(m.Destination+m.Source, 0) {
			bad("a mount at %q is not below the root", m.Destination)
		}
	}
	for _, d := range after.Linux.Devices {
		if !filepath.IsAbs(d.Path) || !slices.Contains([]string{"b", "c", "u", "p"}, d.Type) {
			bad("a device %q of the type %q cannot be made", d.Path, d.Type)
		}
	}
	if before.Linux == nil {
		return wrong(errs)
	}
	if after.Linux.CgroupsPath != before.Linux.CgroupsPath {
		bad("linux.cgroupsPath is berth's, and cannot be changed to %q", after.Linux.CgroupsPath)
	}
	for _, kind := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.NetworkNamespace, specs.UserNamespace, specs.IPCNamespace, specs.UTSNamespace} {
		if namespace(before, kind) != namespace(after, kind) {
			bad("the %s namespace is the pod's, and cannot be changed", kind)
		}
	}
	for k, v := range before.Annotations {
		if strings.HasPrefix(k, ours) && after.Annotations[k] != v {
			bad("the annotation %s cannot be changed", k)
		}
	}
	return wrong(errs)
}

func wrong(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", errors.Join(errs...), errdefs.ErrInvalidArgument)
}

// namespace returns where a namespace of a specification is, or "none" if it has none of this type.
func namespace(s *specs.Spec, kind specs.LinuxNamespaceType) string {
	i := slices.IndexFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == kind })
	if i < 0 {
		return "none"
	}
	return "at " + s.Linux.Namespaces[i].Path
}
