// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// LabelKind is the label of a container object by which ctr, nerdctl and node agents distinguish
// pods from containers. Its value is KindSandbox or KindContainer.
const (
	LabelKind     = "io.cri-containerd.kind"
	KindSandbox   = "sandbox"
	KindContainer = "container"
)

// maxLabel is how long the name and the value of a label in containerd may be together, in bytes.
const maxLabel = 4096

// reservedLabels are prefixes of labels with a meaning for berth, for containerd's garbage
// collector or for agents that look for objects made by the CRI.
var reservedLabels = []string{"io.berth.", "berth.", "containerd.io/", "io.containerd.", "io.cri-containerd"}

// ObjectLabels returns the labels of a container object in containerd: its kind and, for agents
// that read them there, the labels of the pod or the container. Labels with a reserved prefix are
// left out, as are those that containerd does not accept; the record has all of them.
func ObjectLabels(labels map[string]string, kind string) map[string]string {
	all := map[string]string{}
	for k, v := range labels {
		if len(k)+len(v) <= maxLabel && !reserved(k) {
			all[k] = v
		}
	}
	all[LabelKind] = kind
	return all
}

func reserved(name string) bool {
	for _, p := range reservedLabels {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// identify writes the annotations by which the shim groups a pod and agents find it.
func identify(s *specs.Spec, cfg *runtimeapi.PodSandboxConfig, id string) {
	m := cfg.GetMetadata()
	s.Annotations["io.kubernetes.cri.sandbox-id"] = id
	s.Annotations["io.kubernetes.cri.sandbox-name"] = m.GetName()
	s.Annotations["io.kubernetes.cri.sandbox-namespace"] = m.GetNamespace()
	s.Annotations["io.kubernetes.cri.sandbox-uid"] = m.GetUid()
}

// neverPassed begins the annotations that no setting hands to an OCI runtime. They would let the
// author of a pod name files and programs of the host, a seccomp filter, or another pod's shim, or
// forge an annotation that berth writes.
var neverPassed = []string{
	"org.systemd.property.",  // properties of systemd units: CVE-2024-3154
	"org.criu.",              // a file of CRIU's settings, which can name a program to run
	"run.oci.hooks.",         // crun: files for the output of hooks
	"run.oci.seccomp",        // crun: a socket for its notifications, or another filter
	"run.oci.pidfd_receiver", // crun: a socket
	"io.containerd.runc.",    // the shim of runc: which shim serves the container
	"io.kubernetes.cri.",     // whose pod and which container it is
}

// actedOn begins the annotations by which crun does something else with a container. A pattern must
// name them in full, because the author of a * is unlikely to have meant them.
const actedOn = "run.oci."

// passThrough returns the annotations that match one of the patterns: patterns are those of
// path.Match, and a * at the end also matches slashes.
func passThrough(annotations map[string]string, patterns []string) map[string]string {
	out := map[string]string{}
	for k, v := range annotations {
		if slices.ContainsFunc(neverPassed, func(p string) bool { return strings.HasPrefix(k, p) }) {
			continue
		}
		for _, p := range patterns {
			prefix, star := strings.CutSuffix(p, "*")
			ok, err := path.Match(p, k)
			if p == k || (err == nil && ok || star && strings.HasPrefix(k, prefix)) && !strings.HasPrefix(k, actedOn) {
				out[k] = v
			}
		}
	}
	return out
}
