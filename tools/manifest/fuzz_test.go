// SPDX-License-Identifier: Apache-2.0

package manifest

import "testing"

// A manifest that can be translated has a name for its pod and a container; any other is an error.
func FuzzPod(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: b, image: c}]}\n"))
	f.Add([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {volumes: [{name: v, emptyDir: {}}], containers: [{name: b, image: c, volumeMounts: [{name: v, mountPath: /v}]}]}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		pod, err := Parse(b)
		if err != nil {
			return
		}
		plan, err := Translate(pod, Options{})
		if err == nil && (plan.Name == "" || plan.Sandbox == nil) {
			t.Errorf("%q is translated to %+v", b, plan)
		}
	})
}
