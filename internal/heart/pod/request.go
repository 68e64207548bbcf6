// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"os"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/base/ops"
	"berth/internal/host/spec"
)

// sharesPIDs reports whether the processes of the unit are not in a PID namespace of their own, so
// that some may outlive its init.
func (u *unit) sharesPIDs() bool {
	if u.isSandbox() {
		return u.podNamespaces().GetPid() == runtimeapi.NamespaceMode_NODE
	}
	return u.container.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() != runtimeapi.NamespaceMode_CONTAINER
}

// mayBeRebooted reports whether the process of u is the init of a PID namespace in which a process
// of the pod may call reboot(2): u's own, one of a container that joins its namespace, or, if u is
// the sandbox, one of the containers that share its namespace.
func (u *unit) mayBeRebooted() bool {
	return slices.ContainsFunc(u.pod.containers(), func(ct *unit) bool {
		sec := ct.container.Config.GetLinux().GetSecurityContext()
		joins := false
		switch o := sec.GetNamespaceOptions(); o.GetPid() {
		case runtimeapi.NamespaceMode_CONTAINER:
			joins = ct == u
		case runtimeapi.NamespaceMode_POD:
			joins = u.isSandbox()
		case runtimeapi.NamespaceMode_TARGET:
			joins = o.GetTargetId() == u.id
		case runtimeapi.NamespaceMode_NODE: // a reboot from there reboots the machine
		}
		return joins && spec.MayReboot(sec)
	})
}

// podNamespaces returns the namespaces that the pod of u asked for.
func (u *unit) podNamespaces() *runtimeapi.NamespaceOption {
	return u.pod.sandbox.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

func hostIPC(u *unit) bool { return u.podNamespaces().GetIpc() == runtimeapi.NamespaceMode_NODE }

// names returns the names by which clients know u.
func (u *unit) names() event.Names {
	if u.isSandbox() {
		return namesOfPod(u.sandbox.Config)
	}
	return namesOfContainer(u.pod, u.container.Config)
}

// namesOfPod returns how clients call the sandbox of a request.
func namesOfPod(config *runtimeapi.PodSandboxConfig) event.Names {
	m := config.GetMetadata()
	return event.Names{
		Namespace: m.GetNamespace(),
		Pod:       m.GetName(),
		UID:       m.GetUid(),
		Attempt:   m.GetAttempt(),
	}
}

// namesOfContainer returns how clients call the container of a request in the sandbox p.
func namesOfContainer(p *unit, config *runtimeapi.ContainerConfig) event.Names {
	n, m := namesOfPod(p.sandbox.Config), config.GetMetadata()
	n.Sandbox, n.Container, n.Attempt = p.id, m.GetName(), m.GetAttempt()
	return n
}

// object returns u as the object of an operation.
func (u *unit) object() ops.Object { return ops.Object{ID: u.id, Names: u.names()} }

func (u *unit) podUID() string { return u.pod.sandbox.Config.GetMetadata().GetUid() }

// hostname returns the host name of the processes of u's pod.
func (u *unit) hostname() string {
	if h := u.pod.sandbox.Config.GetHostname(); h != "" {
		return h
	}
	h, _ := os.Hostname()
	return h
}

// imageName returns the name of the image of a container.
func (u *unit) imageName() string {
	if u.restored() {
		return u.container.Checkpoint.Image
	}
	return imageRef(u.container.Config)
}

// imageRef returns the image that a container asks for.
func imageRef(config *runtimeapi.ContainerConfig) string { return config.GetImage().GetImage() }
