// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// podFields are the fields of a pod that [Translate] reads. [] stands for any index; labels and
// annotations are taken as a whole. A field that is not in this list is not supported, because an
// error is better than a pod that differs from its author's intention.
var podFields = func() map[string]bool {
	list := strings.Fields(`
		apiVersion kind
		metadata.name metadata.namespace metadata.uid metadata.labels metadata.annotations
		spec.volumes[].name spec.volumes[].emptyDir.medium spec.volumes[].emptyDir.sizeLimit
		spec.volumes[].hostPath.path spec.volumes[].hostPath.type
		spec.hostNetwork spec.hostPID spec.hostIPC spec.hostUsers spec.shareProcessNamespace spec.hostname
		spec.dnsPolicy spec.dnsConfig.nameservers[] spec.dnsConfig.searches[] spec.dnsConfig.options[].name spec.dnsConfig.options[].value
		spec.restartPolicy spec.terminationGracePeriodSeconds spec.runtimeClassName
		spec.securityContext.runAsUser spec.securityContext.runAsGroup spec.securityContext.runAsNonRoot
		spec.securityContext.fsGroup spec.securityContext.supplementalGroupsPolicy
		spec.securityContext.appArmorProfile.type spec.securityContext.appArmorProfile.localhostProfile
		spec.securityContext.seLinuxOptions.user spec.securityContext.seLinuxOptions.role
		spec.securityContext.seLinuxOptions.type spec.securityContext.seLinuxOptions.level
		spec.securityContext.supplementalGroups[] spec.securityContext.sysctls[].name spec.securityContext.sysctls[].value
		spec.securityContext.seccompProfile.type spec.securityContext.seccompProfile.localhostProfile`)
	for _, kind := range []string{"initContainers", "containers"} {
		for _, f := range strings.Fields(`
			name image imagePullPolicy command[] args[] workingDir tty stdin stdinOnce
			env[].name env[].value env[].valueFrom.fieldRef.apiVersion env[].valueFrom.fieldRef.fieldPath
			ports[].name ports[].containerPort ports[].hostPort ports[].hostIP ports[].protocol
			resources.limits.cpu resources.limits.memory resources.requests.cpu resources.requests.memory
			volumeMounts[].name volumeMounts[].mountPath volumeMounts[].readOnly volumeMounts[].mountPropagation
			securityContext.runAsUser securityContext.runAsGroup securityContext.runAsNonRoot securityContext.privileged
			securityContext.readOnlyRootFilesystem securityContext.allowPrivilegeEscalation
			securityContext.capabilities.add[] securityContext.capabilities.drop[] securityContext.procMount
			securityContext.appArmorProfile.type securityContext.appArmorProfile.localhostProfile
			securityContext.seLinuxOptions.user securityContext.seLinuxOptions.role
			securityContext.seLinuxOptions.type securityContext.seLinuxOptions.level
			securityContext.seccompProfile.type securityContext.seccompProfile.localhostProfile`) {
			list = append(list, "spec."+kind+"[]."+f)
		}
	}
	m := map[string]bool{}
	for _, f := range list {
		m[f] = true
	}
	return m
}()

// harmless are fields that have no effect outside a cluster when they are false.
var harmless = map[string]bool{"spec.enableServiceLinks": true, "spec.automountServiceAccountToken": true}

// probeFields are the fields that Translate reads in addition if the caller runs probes.
var probeFields = func() map[string]bool {
	m := map[string]bool{}
	for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
		for _, f := range strings.Fields(`
			exec.command[] httpGet.path httpGet.port httpGet.host httpGet.scheme httpGet.httpHeaders[].name httpGet.httpHeaders[].value
			tcpSocket.port tcpSocket.host
			initialDelaySeconds timeoutSeconds periodSeconds successThreshold failureThreshold`) {
			m["spec.containers[]."+probe+"."+f] = true
		}
	}
	return m
}()

// fieldSet is a set of paths of fields.
type fieldSet map[string]bool

// unsupported returns the paths of the fields that are set and that berth does not support, sorted.
func unsupported(pod *corev1.Pod, probes bool) ([]string, error) {
	b, err := json.Marshal(pod)
	if err != nil {
		return nil, fmt.Errorf("read pod %s: %w", pod.Name, err)
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, fmt.Errorf("read pod %s: %w", pod.Name, err)
	}
	known := fieldSet(podFields)
	if probes {
		known = maps.Clone(known)
		maps.Copy(known, probeFields)
	}
	var out []string
	known.walk(v, "", "", &out)
	slices.Sort(out)
	return out, nil
}

// walk appends the paths of all fields below v that the set does not contain. at is the path of
// v, and pattern is the same path with [] for each index.
func (known fieldSet) walk(v any, at, pattern string, out *[]string) {
	if known[pattern] || v == false && harmless[pattern] {
		return
	}
	switch v := v.(type) {
	case map[string]any:
		if known.supported(pattern) || hollow[pattern] {
			for _, k := range slices.Sorted(maps.Keys(v)) {
				known.walk(v[k], strings.TrimPrefix(at+"."+k, "."), strings.TrimPrefix(pattern+"."+k, "."), out)
			}
			return
		}
	case []any:
		if known.supported(pattern + "[]") {
			for i, e := range v {
				known.walk(e, fmt.Sprintf("%s[%d]", at, i), pattern+"[]", out)
			}
			return
		}
		if len(v) == 0 {
			return
		}
	case nil:
		return
	}
	*out = append(*out, at)
}

// hollow are objects that may be present although none of their fields is supported.
var hollow = map[string]bool{"status": true, "spec.volumes[].emptyDir": true}

// supported reports whether the field, or something below it, is in the set.
func (known fieldSet) supported(pattern string) bool {
	if pattern == "" || known[pattern] {
		return true
	}
	for f := range known {
		if rest, ok := strings.CutPrefix(f, pattern); ok && (rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}
