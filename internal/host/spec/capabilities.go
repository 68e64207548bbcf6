// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// defaultCaps are the capabilities of a container by default: the set that Docker introduced and
// Kubernetes users know.
var defaultCaps = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
	"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// capabilities sets the capabilities of the process. ALL comes first, dropping before adding, then
// the single names, adding before dropping: add ALL with drop ALL is none, and drop ALL with add
// KILL is KILL. own are those of a container that asks for none, instead of the usual ones.
func capabilities(h Host, s *specs.Spec, sec *runtimeapi.LinuxContainerSecurityContext, own []string) error {
	asked := sec.GetCapabilities()
	add, addAll, err := capabilityNames(h, "add_capabilities", asked.GetAddCapabilities())
	if err != nil {
		return err
	}
	drop, dropAll, err := capabilityNames(h, "drop_capabilities", asked.GetDropCapabilities())
	if err != nil {
		return err
	}
	ambient, ambientAll, err := capabilityNames(h, "add_ambient_capabilities", asked.GetAddAmbientCapabilities())
	if err != nil {
		return err
	}
	usual, caps := defaultCaps, []string(nil)
	if len(own) > 0 {
		usual, _ = names(own)
	}
	switch {
	case sec.GetPrivileged():
		caps = slices.Clone(h.Capabilities)
		add, drop = nil, nil
	case dropAll:
	case addAll:
		caps = slices.Clone(h.Capabilities)
	default:
		caps = slices.DeleteFunc(slices.Clone(usual), func(c string) bool { return !slices.Contains(h.Capabilities, c) })
	}
	for _, c := range slices.Concat(add, ambient) { // an ambient capability is a permitted one, too
		if !slices.Contains(caps, c) {
			caps = append(caps, c)
		}
	}
	dropped := func(c string) bool { return slices.Contains(drop, c) }
	caps = slices.DeleteFunc(caps, dropped)
	if ambientAll {
		ambient = slices.Clone(caps)
	}
	ambient = slices.DeleteFunc(ambient, dropped)
	s.Process.Capabilities = &specs.LinuxCapabilities{
		Bounding:  caps,
		Effective: slices.Clone(caps),
		Permitted: slices.Clone(caps),
	}
	// The inheritable set stays empty but for the ambient capabilities, which capabilities(7)
	// requires to be inheritable: a program could otherwise gain capabilities through the
	// inheritable set of its file (CVE-2022-24769).
	if len(ambient) > 0 {
		s.Process.Capabilities.Ambient = ambient
		s.Process.Capabilities.Inheritable = slices.Clone(ambient)
	}
	return nil
}

// reboots is the capability that reboot(2) asks for.
const reboots = "CAP_SYS_BOOT"

// MayReboot reports whether a container gets CAP_SYS_BOOT, if its host has it. If the container has
// a PID namespace of its own, reboot(2) ends the init of that (pid_namespaces(7)).
func MayReboot(sec *runtimeapi.LinuxContainerSecurityContext) bool {
	if sec.GetPrivileged() {
		return true
	}
	asked := sec.GetCapabilities()
	add, addAll := names(asked.GetAddCapabilities())
	drop, dropAll := names(asked.GetDropCapabilities())
	ambient, _ := names(asked.GetAddAmbientCapabilities())
	if slices.Contains(drop, reboots) {
		return false
	}
	return addAll && !dropAll || slices.Contains(add, reboots) || slices.Contains(ambient, reboots)
}

// capabilityNames returns the names in a list as names does, and refuses those that the host does
// not know.
func capabilityNames(h Host, field string, list []string) (known []string, all bool, err error) {
	known, all = names(list)
	for _, n := range known {
		if !slices.Contains(h.Capabilities, n) {
			return nil, false, fmt.Errorf("%s: capability %q is not known to this host: %w", field, n, errdefs.ErrInvalidArgument)
		}
	}
	return known, all, nil
}

// names returns the names in a list as the OCI specification spells them, each once and without
// ALL, and whether ALL was among them.
func names(list []string) (found []string, all bool) {
	for _, c := range list {
		n := strings.ToUpper(c)
		if n == "ALL" {
			all = true
			continue
		}
		if !strings.HasPrefix(n, "CAP_") {
			n = "CAP_" + n
		}
		if !slices.Contains(found, n) {
			found = append(found, n)
		}
	}
	return found, all
}
