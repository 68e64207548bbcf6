// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"path"
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

// reservedLabels are the beginnings of names that mean something to berth, to containerd's garbage
// collector and to agents that look for what the CRI made.
var reservedLabels = []string{"io.berth.", "berth.", "containerd.io/", "io.containerd.", "io.cri-containerd"}

// ObjectLabels returns the labels of a container object in containerd: its kind and, for agents
// that read them there, the labels of the pod or the container. Labels that would speak for berth
// or for containerd are left out, as are those that containerd does not take; the record has all of
// them.
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

// passThrough returns the annotations that match one of the patterns: those of path.Match, and a *
// at the end takes the rest. runc makes properties of systemd units from some (CVE-2024-3154);
// those never pass.
func passThrough(annotations map[string]string, patterns []string) map[string]string {
	out := map[string]string{}
	for k, v := range annotations {
		if strings.HasPrefix(k, "org.systemd.property.") {
			continue
		}
		for _, p := range patterns {
			prefix, star := strings.CutSuffix(p, "*")
			if ok, err := path.Match(p, k); err == nil && ok || star && strings.HasPrefix(k, prefix) {
				out[k] = v
			}
		}
	}
	return out
}
