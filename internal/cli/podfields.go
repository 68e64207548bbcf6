// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// podFields are the fields of a pod that [Translate] reads: [] is any index, and labels and annotations are whole.
// A field that is not here is not done, and saying so is better than a pod that is not what its author wrote.
var podFields = func() map[string]bool {
	list := strings.Fields(`
		apiVersion kind
		metadata.name metadata.namespace metadata.uid metadata.labels metadata.annotations
		spec.volumes[].name
		spec.volumes[].hostPath.path spec.volumes[].hostPath.type
		spec.hostNetwork spec.hostPID spec.hostIPC spec.shareProcessNamespace spec.hostname
		spec.dnsPolicy spec.dnsConfig.nameservers[] spec.dnsConfig.searches[] spec.dnsConfig.options[].name spec.dnsConfig.options[].value
		spec.restartPolicy spec.terminationGracePeriodSeconds spec.runtimeClassName
		spec.securityContext.runAsUser spec.securityContext.runAsGroup spec.securityContext.runAsNonRoot
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
			securityContext.capabilities.add[] securityContext.capabilities.drop[]
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

// without have no effect where there is no cluster, if they are false.
var without = map[string]bool{"spec.enableServiceLinks": true, "spec.automountServiceAccountToken": true}

// unsupported are the paths of the fields that are set and that berth does not do, sorted.
func unsupported(pod *corev1.Pod) ([]string, error) {
	b, err := json.Marshal(pod)
	if err != nil {
		return nil, fmt.Errorf("read pod %s: %w", pod.Name, err)
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, fmt.Errorf("read pod %s: %w", pod.Name, err)
	}
	var out []string
	walk(v, "", "", &out)
	slices.Sort(out)
	return out, nil
}

// walk goes down to what podFields does not know: at is the path, pattern the same with [] for each index.
func walk(v any, at, pattern string, out *[]string) {
	if podFields[pattern] || v == false && without[pattern] {
		return
	}
	switch v := v.(type) {
	case map[string]any:
		if known(pattern) || hollow[pattern] {
			for _, k := range slices.Sorted(maps.Keys(v)) {
				walk(v[k], strings.TrimPrefix(at+"."+k, "."), strings.TrimPrefix(pattern+"."+k, "."), out)
			}
			return
		}
	case []any:
		if known(pattern + "[]") {
			for i, e := range v {
				walk(e, fmt.Sprintf("%s[%d]", at, i), pattern+"[]", out)
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

// hollow may be there; nothing in them is done.
var hollow = map[string]bool{"status": true, "spec.volumes[].emptyDir": true}

// known: something below the path is done.
func known(pattern string) bool {
	if pattern == "" || podFields[pattern] {
		return true
	}
	for f := range podFields {
		if rest, ok := strings.CutPrefix(f, pattern); ok && (rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}
