// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	inPod       = runtimeapi.NamespaceMode_POD
	inContainer = runtimeapi.NamespaceMode_CONTAINER
	onNode      = runtimeapi.NamespaceMode_NODE
	inTarget    = runtimeapi.NamespaceMode_TARGET
)

// sandboxNamespaces returns the namespaces of the pause process, which the pod's containers join.
func sandboxNamespaces(ns *runtimeapi.NamespaceOption, netNS, userNS string) ([]specs.LinuxNamespace, error) {
	if err := checkModes(ns, inPod, inContainer, onNode); err != nil {
		return nil, err
	}
	list := []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	if ns.GetNetwork() != onNode {
		list = append(list,
			specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: netNS},
			specs.LinuxNamespace{Type: specs.UTSNamespace})
	}
	if ns.GetPid() != onNode {
		list = append(list, specs.LinuxNamespace{Type: specs.PIDNamespace})
	}
	if ns.GetIpc() != onNode {
		list = append(list, specs.LinuxNamespace{Type: specs.IPCNamespace})
	}
	if u := ns.GetUsernsOptions(); u != nil && u.GetMode() == inPod {
		list = append(list, specs.LinuxNamespace{Type: specs.UserNamespace, Path: userNS})
	}
	return list, nil
}

// Pins are the paths of the namespaces of a pod without a pause process. Those that the pod does
// not have of its own are not used.
type Pins struct{ IPC, UTS string }

// NeedsProcess reports whether a process has to hold the namespaces of a pod: a PID namespace that
// containers share ends with its init process, and a user namespace that the pod has of its own is
// joined by way of the process.
func NeedsProcess(cfg *runtimeapi.PodSandboxConfig) bool {
	ns := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	_, user := UserNamespace(cfg)
	return ns.GetPid() == inPod || user
}

// namespaces sets which namespaces the container joins and which it gets of its own.
func namespaces(s *specs.Spec, in Container, view groupView) error {
	opts := in.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if err := checkModes(opts, inPod, inContainer, onNode, inTarget); err != nil {
		return err
	}
	if err := checkNode(opts, in.Sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions()); err != nil {
		return err
	}
	if err := sameUserNamespace(opts.GetUsernsOptions(), in.Sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()); err != nil {
		return err
	}
	ofPause := func(name string) string { return fmt.Sprintf("/proc/%d/ns/%s", in.SandboxPID, name) }
	pod := in.Sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions()
	ipc, uts := ofPause("ipc"), ofPause("uts")
	if in.Pins != nil {
		ipc, uts = in.Pins.IPC, in.Pins.UTS
	}
	s.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	add := func(t specs.LinuxNamespaceType, p string) {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: t, Path: p})
	}
	if in.NetNS != "" {
		add(specs.NetworkNamespace, in.NetNS)
		add(specs.UTSNamespace, uts)
	}
	if opts.GetIpc() != onNode && (in.Pins == nil || pod.GetIpc() != onNode) {
		add(specs.IPCNamespace, ipc)
	}
	switch opts.GetPid() {
	case inContainer:
		add(specs.PIDNamespace, "")
	case inPod:
		switch {
		case in.Pins == nil:
			add(specs.PIDNamespace, ofPause("pid"))
		case pod.GetPid() != onNode: // the pod was asked for with CONTAINER, and has none to share
			add(specs.PIDNamespace, "")
		}
	case inTarget:
		if in.TargetPID == 0 {
			return fmt.Errorf("namespace_options.pid: target container %q does not run, so its PID namespace cannot be joined: %w",
				opts.GetTargetId(), errdefs.ErrFailedPrecondition)
		}
		add(specs.PIDNamespace, PIDNamespaceOf(in.TargetPID))
	}
	if view.hidden {
		add(specs.CgroupNamespace, "")
	}
	return inUserNamespace(s, in)
}

// PIDNamespaceOf returns the path of the PID namespace of the process that has a PID now. The
// caller must see to it that this is still the process that was meant.
func PIDNamespaceOf(pid uint32) string { return fmt.Sprintf("/proc/%d/ns/pid", pid) }

// checkModes refuses modes that CRI has no meaning for; pid lists those that the PID namespace may
// have.
func checkModes(ns *runtimeapi.NamespaceOption, pid ...runtimeapi.NamespaceMode) error {
	for _, m := range []struct {
		field string
		mode  runtimeapi.NamespaceMode
		known []runtimeapi.NamespaceMode
	}{
		{"network", ns.GetNetwork(), []runtimeapi.NamespaceMode{inPod, onNode}},
		{"ipc", ns.GetIpc(), []runtimeapi.NamespaceMode{inPod, onNode}},
		{"pid", ns.GetPid(), pid},
	} {
		if !slices.Contains(m.known, m.mode) {
			return fmt.Errorf("namespace_options.%s: mode %s is not one of %v: %w", m.field, m.mode, m.known, errdefs.ErrInvalidArgument)
		}
	}
	return checkUserNamespace(ns)
}

// checkNode refuses a container that uses namespaces of the host that its pod does not use: the pod
// was admitted without them.
func checkNode(container, pod *runtimeapi.NamespaceOption) error {
	for _, m := range []struct {
		field  string
		wants  runtimeapi.NamespaceMode
		podHas runtimeapi.NamespaceMode
	}{
		{"network", container.GetNetwork(), pod.GetNetwork()},
		{"ipc", container.GetIpc(), pod.GetIpc()},
		{"pid", container.GetPid(), pod.GetPid()},
	} {
		if m.wants == onNode && m.podHas != onNode {
			return fmt.Errorf("namespace_options.%s: NODE is for containers of a pod that has the host's namespace; this pod has its own: %w",
				m.field, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}
