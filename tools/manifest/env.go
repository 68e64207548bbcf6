// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// env returns the container's environment in order, and by name for references.
func (t *translation) env(field string, c *corev1.Container) ([]*runtimeapi.KeyValue, map[string]string) {
	vars := map[string]string{}
	var out []*runtimeapi.KeyValue
	for i, e := range c.Env {
		field := fmt.Sprintf("%s.env[%d]", field, i)
		if e.Name == "" || strings.ContainsAny(e.Name, "=\x00") {
			t.bad(field+".name", "%q is not a name of a variable", e.Name)
		}
		value := expand(e.Value, vars)
		if strings.Contains(e.Value, "\x00") {
			t.bad(field+".value", "it contains a zero byte")
		}
		if f := e.ValueFrom; f != nil && f.FieldRef != nil {
			if e.Value != "" {
				t.bad(field, "it has both a value and a valueFrom")
			}
			value = t.podField(field+".valueFrom.fieldRef.fieldPath", f.FieldRef.FieldPath)
		}
		vars[e.Name] = value
		// Of several variables with one name, the last one counts.
		out = slices.DeleteFunc(out, func(kv *runtimeapi.KeyValue) bool { return kv.GetKey() == e.Name })
		out = append(out, &runtimeapi.KeyValue{Key: e.Name, Value: []byte(value)})
	}
	return out, vars
}

// podField returns the value of a field that a fieldRef names.
func (t *translation) podField(field, name string) string {
	switch name {
	case "metadata.name":
		return t.pod.Name
	case "metadata.namespace":
		return t.pod.Namespace
	case "metadata.uid":
		return string(t.pod.UID)
	case "status.podIP":
		if t.pod.Spec.HostNetwork && t.options.HostIP == "" {
			t.bad(field, "status.podIP: the pod uses the host's network, and the host's address is not known")
		}
		return podIPMark
	}
	t.bad(field, "%q is not metadata.name, metadata.namespace, metadata.uid or status.podIP", name)
	return ""
}

// expand replaces $(NAME) by the variable of that name. $$ becomes a single $, and a reference to a
// variable that does not exist stays as it is. Source: the API's documentation of
// Container.command.
func expand(s string, vars map[string]string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			out.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			out.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(s[i:], ')')
			if end < 0 {
				out.WriteByte('$')
				continue
			}
			if v, ok := vars[s[i+2:i+end]]; ok {
				out.WriteString(v)
			} else {
				out.WriteString(s[i : i+end+1])
			}
			i += end
		default:
			out.WriteByte('$')
		}
	}
	return out.String()
}
