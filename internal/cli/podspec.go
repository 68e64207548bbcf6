// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"
)

// PlayOptions is what [Translate] cannot read from the pod.
type PlayOptions struct {
	LogDir            string                // of all pods; empty: /var/log/pods
	VolumeDir         string                // of emptyDir volumes, which are UID/NAME below it; empty: /var/lib/berth-play
	UID               types.UID             // of a pod that has none
	HostIP            string                // status.podIP of pods in the host's network; needed by those that ask for it
	HostDNS           *runtimeapi.DNSConfig // what a pod's dnsConfig adds to, unless its dnsPolicy is None
	IgnoreUnsupported bool                  // what berth does not do is listed in Plan.Ignored and is no error
}

const (
	defaultLogDir    = "/var/log/pods"
	defaultVolumeDir = "/var/lib/berth-play"
)

// Plan is a pod as CRI takes it.
type Plan struct {
	Name       string
	Handler    string
	Sandbox    *runtimeapi.PodSandboxConfig
	Volumes    []PlannedVolume    // to be made, or to be there, before anything runs
	Init       []PlannedContainer // one after the other, each has to end with 0
	Containers []PlannedContainer
	HostIP     string   // status.podIP where CRI tells none
	Grace      int64    // seconds that a stop leaves containers
	Ignored    []string // paths of the fields that were left out, when that is allowed
}

// PlannedVolume is a directory or file of the host. Type is that of a hostPath volume, or [emptyDir].
type PlannedVolume struct {
	Name, Path, Type string
}

const emptyDir = "EmptyDir"

// PlannedContainer is a container to be made. In Config's command, arguments and environment, [podIPMark]
// stands for the pod's address, which is known once the sandbox runs.
type PlannedContainer struct {
	Config     *runtimeapi.ContainerConfig
	PullPolicy string // Always, IfNotPresent or Never
	NonRoot    bool   // the image has to name a numeric user that is not 0
}

// podIPMark has a zero byte, which no argument and no variable can have.
const podIPMark = "\x00status.podIP\x00"

// ParsePod reads a v1 Pod strictly: a field that Kubernetes does not know is an error.
func ParsePod(b []byte) (*corev1.Pod, error) {
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict(b, &pod); err != nil {
		return nil, fmt.Errorf("read pod: %w", err)
	}
	if pod.Kind != "Pod" || pod.APIVersion != "v1" {
		return nil, fmt.Errorf("read pod: it is a %q of version %q, not a Pod of version v1", pod.Kind, pod.APIVersion)
	}
	return &pod, nil
}

var (
	dnsName   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)
	dnsLabel  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	plainWord = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$`)
)

// translation is one pod on its way.
type translation struct {
	pod  *corev1.Pod
	o    PlayOptions
	plan *Plan
	ns   *runtimeapi.NamespaceOption // of the sandbox and of all containers
	errs []error
}

func (t *translation) bad(field, format string, args ...any) {
	t.errs = append(t.errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
}

// Translate turns a pod into CRI's configurations, as the kubelet would. It reads nothing but its arguments. The
// error names the paths of all fields that are wrong or that berth does not do.
func Translate(pod *corev1.Pod, o PlayOptions) (*Plan, error) {
	o.LogDir, o.VolumeDir = cmp.Or(o.LogDir, defaultLogDir), cmp.Or(o.VolumeDir, defaultVolumeDir)
	t := &translation{pod: pod.DeepCopy(), o: o, plan: &Plan{Name: pod.Name, HostIP: o.HostIP, Grace: 30}}
	if t.identity(); len(t.errs) > 0 {
		return nil, errors.Join(t.errs...)
	}
	fields, err := unsupported(pod)
	if err != nil {
		return nil, err
	}
	if t.plan.Ignored = fields; !o.IgnoreUnsupported {
		for _, f := range fields {
			t.errs = append(t.errs, fmt.Errorf("%s: play cannot do that; take it out, or give --ignore-unsupported", f))
		}
	}
	t.volumes()
	t.sandbox()
	seen := map[string]bool{}
	for i := range t.pod.Spec.InitContainers {
		t.container(fmt.Sprintf("spec.initContainers[%d]", i), &t.pod.Spec.InitContainers[i], seen, &t.plan.Init)
	}
	for i := range t.pod.Spec.Containers {
		t.container(fmt.Sprintf("spec.containers[%d]", i), &t.pod.Spec.Containers[i], seen, &t.plan.Containers)
	}
	if len(t.pod.Spec.Containers) == 0 {
		t.bad("spec.containers", "there is none")
	}
	if len(t.errs) > 0 {
		return nil, errors.Join(t.errs...)
	}
	return t.plan, nil
}

// identity: names become those of directories, so nothing may be in them that leads elsewhere.
func (t *translation) identity() {
	m := &t.pod.ObjectMeta
	m.Namespace, m.UID = cmp.Or(m.Namespace, "default"), cmp.Or(m.UID, t.o.UID)
	if !dnsName.MatchString(m.Name) || len(m.Name) > 253 {
		t.bad("metadata.name", "%q is not lower-case letters, digits, dots and hyphens", m.Name)
	}
	if !dnsLabel.MatchString(m.Namespace) || len(m.Namespace) > 63 {
		t.bad("metadata.namespace", "%q is not lower-case letters, digits and hyphens", m.Namespace)
	}
	if !plainWord.MatchString(string(m.UID)) || len(m.UID) > 63 {
		t.bad("metadata.uid", "%q is not letters, digits and hyphens", m.UID)
	}
}
