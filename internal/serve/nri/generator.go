// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/runtime-tools/generate"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// generator changes a specification, in the steps into which NRI's library takes an adjustment
// apart.
type generator struct{ spec *specs.Spec }

var _ generate.UnderlyingGenerator = (*generator)(nil)

func (g *generator) Spec() *specs.Spec { return g.spec }

func (g *generator) AddAnnotation(key, value string) { g.spec.Annotations[key] = value }
func (g *generator) RemoveAnnotation(key string)     { delete(g.spec.Annotations, key) }

func (g *generator) SetProcessArgs(args []string) { g.spec.Process.Args = args }
func (g *generator) ClearProcessEnv()             { g.spec.Process.Env = nil }

func (g *generator) AddProcessEnv(name, value string) {
	g.spec.Process.Env = slices.DeleteFunc(g.spec.Process.Env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
	g.spec.Process.Env = append(g.spec.Process.Env, name+"="+value)
}

func (g *generator) SetProcessOOMScoreAdj(adj int) { g.spec.Process.OOMScoreAdj = &adj }

func (g *generator) hooks() *specs.Hooks {
	if g.spec.Hooks == nil {
		g.spec.Hooks = &specs.Hooks{}
	}
	return g.spec.Hooks
}

func (g *generator) AddPreStartHook(h specs.Hook) {
	g.hooks().Prestart = append(g.hooks().Prestart, h) //nolint:staticcheck // plug-ins still use it
}
func (g *generator) AddPostStartHook(h specs.Hook) {
	g.hooks().Poststart = append(g.hooks().Poststart, h)
}
func (g *generator) AddPostStopHook(h specs.Hook) { g.hooks().Poststop = append(g.hooks().Poststop, h) }

func (g *generator) Mounts() []specs.Mount   { return g.spec.Mounts }
func (g *generator) ClearMounts()            { g.spec.Mounts = nil }
func (g *generator) AddMount(m specs.Mount)  { g.spec.Mounts = append(g.spec.Mounts, m) }
func (g *generator) RemoveMount(dest string) { g.dropMount(dest) }

func (g *generator) dropMount(dest string) {
	g.spec.Mounts = slices.DeleteFunc(g.spec.Mounts, func(m specs.Mount) bool { return m.Destination == dest })
}

func (g *generator) AddDevice(d specs.LinuxDevice) {
	g.RemoveDevice(d.Path)
	g.spec.Linux.Devices = append(g.spec.Linux.Devices, d)
}

func (g *generator) RemoveDevice(path string) {
	g.spec.Linux.Devices = slices.DeleteFunc(g.spec.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Path == path })
}

func (g *generator) AddLinuxResourcesDevice(allow bool, kind string, major, minor *int64, access string) {
	g.spec.Linux.Resources.Devices = append(g.spec.Linux.Resources.Devices, specs.LinuxDeviceCgroup{
		Allow:  allow,
		Type:   kind,
		Major:  major,
		Minor:  minor,
		Access: access,
	})
}

func (g *generator) AddOrReplaceLinuxNamespace(kind, path string) error {
	if err := g.RemoveLinuxNamespace(kind); err != nil {
		return err
	}
	g.spec.Linux.Namespaces = append(g.spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.LinuxNamespaceType(kind), Path: path})
	return nil
}

func (g *generator) RemoveLinuxNamespace(kind string) error {
	switch specs.LinuxNamespaceType(kind) {
	case specs.PIDNamespace, specs.NetworkNamespace, specs.MountNamespace, specs.IPCNamespace, specs.UTSNamespace,
		specs.UserNamespace, specs.CgroupNamespace, specs.TimeNamespace:
	default:
		return fmt.Errorf("%q is not a namespace", kind)
	}
	g.spec.Linux.Namespaces = slices.DeleteFunc(g.spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.LinuxNamespaceType(kind)
	})
	return nil
}

func (g *generator) AddLinuxSysctl(key, value string) {
	if g.spec.Linux.Sysctl == nil {
		g.spec.Linux.Sysctl = map[string]string{}
	}
	g.spec.Linux.Sysctl[key] = value
}

func (g *generator) RemoveLinuxSysctl(key string)    { delete(g.spec.Linux.Sysctl, key) }
func (g *generator) SetLinuxCgroupsPath(path string) { g.spec.Linux.CgroupsPath = path }
func (g *generator) SetLinuxRootPropagation(p string) error {
	g.spec.Linux.RootfsPropagation = p
	return nil
}

func (g *generator) cpu() *specs.LinuxCPU {
	if g.spec.Linux.Resources.CPU == nil {
		g.spec.Linux.Resources.CPU = &specs.LinuxCPU{}
	}
	return g.spec.Linux.Resources.CPU
}

func (g *generator) SetLinuxResourcesCPUCpus(cpus string)        { g.cpu().Cpus = cpus }
func (g *generator) SetLinuxResourcesCPUMems(mems string)        { g.cpu().Mems = mems }
func (g *generator) SetLinuxResourcesCPUPeriod(v uint64)         { g.cpu().Period = &v }
func (g *generator) SetLinuxResourcesCPUQuota(v int64)           { g.cpu().Quota = &v }
func (g *generator) SetLinuxResourcesCPURealtimePeriod(v uint64) { g.cpu().RealtimePeriod = &v }
func (g *generator) SetLinuxResourcesCPURealtimeRuntime(v int64) { g.cpu().RealtimeRuntime = &v }
func (g *generator) SetLinuxResourcesCPUShares(v uint64)         { g.cpu().Shares = &v }

func (g *generator) memory() *specs.LinuxMemory {
	if g.spec.Linux.Resources.Memory == nil {
		g.spec.Linux.Resources.Memory = &specs.LinuxMemory{}
	}
	return g.spec.Linux.Resources.Memory
}

func (g *generator) SetLinuxResourcesMemoryLimit(v int64) { g.memory().Limit = &v }
func (g *generator) SetLinuxResourcesMemorySwap(v int64)  { g.memory().Swap = &v }

func (g *generator) AddLinuxResourcesHugepageLimit(size string, limit uint64) {
	r := g.spec.Linux.Resources
	r.HugepageLimits = slices.DeleteFunc(r.HugepageLimits, func(h specs.LinuxHugepageLimit) bool { return h.Pagesize == size })
	r.HugepageLimits = append(r.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: size, Limit: limit})
}

func (g *generator) AddLinuxResourcesUnified(key, value string) {
	if g.spec.Linux.Resources.Unified == nil {
		g.spec.Linux.Resources.Unified = map[string]string{}
	}
	g.spec.Linux.Resources.Unified[key] = value
}
