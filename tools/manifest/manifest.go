// SPDX-License-Identifier: Apache-2.0

package manifest

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

// The directories that are used where [Options] names none.
const (
	DefaultLogDir    = "/var/log/pods"
	DefaultVolumeDir = "/var/lib/berth-play"
)

// IDs is how many user and group IDs a pod with a user namespace has, as the kubelet gives it.
const IDs = 65536

// Options are inputs of [Translate] that are not in the pod.
type Options struct {
	// LogDir is the directory of the logs of all pods. Empty means [DefaultLogDir].
	LogDir string
	// VolumeDir is the directory of emptyDir volumes, which are UID/NAME below it. Empty means
	// [DefaultVolumeDir].
	VolumeDir string
	// UID is given to a pod that has none.
	UID types.UID
	// HostIP is status.podIP of a pod in the host's network. Only pods that ask for it need it.
	HostIP string
	// HostDNS is the configuration that the pod's dnsConfig adds to, unless its dnsPolicy is None.
	HostDNS *runtimeapi.DNSConfig
	// FirstID is the first of the [IDs] user and group IDs of the host that a pod with hostUsers:
	// false has for itself. Only such a pod needs them.
	FirstID uint32
	// IgnoreUnsupported makes Translate list the fields that berth does not support in
	// [Plan.Ignored] instead of returning an error.
	IgnoreUnsupported bool
	// Watched is set if the caller runs the probes of containers. Without it, a probe is a field
	// that is not supported.
	Watched bool
}

// Plan is a pod as CRI takes it.
type Plan struct {
	Name    string
	Handler string // runtime handler; empty means the default one
	Sandbox *runtimeapi.PodSandboxConfig
	// Volumes have to be prepared before anything runs.
	Volumes []Volume
	// Init are the init containers. Each one has to exit with 0 before the next one starts.
	Init       []Container
	Containers []Container
	HostIP     string // status.podIP where CRI reports no address
	Grace      int64  // seconds between SIGTERM and SIGKILL when the pod is stopped
	// RestartPolicy is Always, OnFailure or Never. Restarting is the caller's part.
	RestartPolicy corev1.RestartPolicy
	Ignored       []string // paths of the fields that were left out
}

// Container is a container to be created. In the command, arguments and environment of Config,
// [podIPMark] stands for the pod's address, which is not known before the sandbox runs.
type Container struct {
	Config     *runtimeapi.ContainerConfig
	PullPolicy string // Always, IfNotPresent or Never
	NonRoot    bool   // the image has to name a numeric user other than 0
	Probes     Probes
}

// podIPMark contains a zero byte, which no argument and no variable can contain.
const podIPMark = "\x00status.podIP\x00"

// Parse reads a v1 Pod strictly: a field that Kubernetes does not know is an error.
func Parse(b []byte) (*corev1.Pod, error) {
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict(b, &pod); err != nil {
		return nil, fmt.Errorf("read pod: %w", err)
	}
	if pod.Kind != "Pod" || pod.APIVersion != "v1" {
		return nil, fmt.Errorf("read pod: it is a %q of version %q, not a Pod of version v1", pod.Kind, pod.APIVersion)
	}
	return &pod, nil
}

// translation is the state of one call of [Translate].
type translation struct {
	pod        *corev1.Pod
	options    Options
	plan       *Plan
	namespaces *runtimeapi.NamespaceOption // of the sandbox and of all containers
	policy     runtimeapi.SupplementalGroupsPolicy
	errs       []error
}

// bad records that the field at this path is wrong, and why.
func (t *translation) bad(field, format string, args ...any) {
	t.errs = append(t.errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
}

// HasOwnUsers reports whether a pod is to have a user namespace, so that [Options.FirstID] counts.
func HasOwnUsers(pod *corev1.Pod) bool { return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers }

// Translate turns a pod into CRI configurations, as the kubelet would. The error names the paths of
// all fields that are wrong or that berth does not support.
func Translate(pod *corev1.Pod, o Options) (*Plan, error) {
	o.LogDir, o.VolumeDir = cmp.Or(o.LogDir, DefaultLogDir), cmp.Or(o.VolumeDir, DefaultVolumeDir)
	const defaultGrace = 30 // seconds, the API's default of terminationGracePeriodSeconds
	t := &translation{
		pod:     pod.DeepCopy(),
		options: o,
		plan: &Plan{
			Name:          pod.Name,
			HostIP:        o.HostIP,
			Grace:         defaultGrace,
			RestartPolicy: cmp.Or(pod.Spec.RestartPolicy, corev1.RestartPolicyAlways),
		},
	}
	if t.identity(); len(t.errs) > 0 {
		return nil, errors.Join(t.errs...)
	}
	fields, err := unsupported(pod, o.Watched)
	if err != nil {
		return nil, err
	}
	if t.plan.Ignored = fields; !o.IgnoreUnsupported {
		for _, f := range fields {
			if isProbe(f) && !o.Watched {
				t.bad(f, "somebody has to run the probe; use --watch, remove it, or use --ignore-unsupported")
				continue
			}
			t.bad(f, "berth does not support this field; remove it, or use --ignore-unsupported")
		}
	}
	switch p := t.plan.RestartPolicy; p {
	case corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever:
	default:
		t.bad("spec.restartPolicy", "%q is not Always, OnFailure or Never", p)
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
		t.bad("spec.containers", "the pod has no container")
	}
	if len(t.errs) > 0 {
		return nil, errors.Join(t.errs...)
	}
	return t.plan, nil
}

var (
	dnsName   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)
	dnsLabel  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	plainWord = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$`)
)

// identity completes and checks the pod's name, namespace and UID. They become names of
// directories, so they must not contain anything that leads elsewhere.
func (t *translation) identity() {
	m := &t.pod.ObjectMeta
	m.Namespace, m.UID = cmp.Or(m.Namespace, "default"), cmp.Or(m.UID, t.options.UID)
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
