// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"reflect"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// A specification of devices that cannot be read adds nothing, and a device that is not injected
// leaves the container's specification as it was.
func FuzzInject(f *testing.F) {
	f.Add(`{"cdiVersion":"0.6.0","kind":"a.example/b","devices":[{"name":"c","containerEdits":{"env":["A=b"]}}]}`)
	f.Add(`{"cdiVersion":"0.6.0","kind":"a.example/b","devices":[{"name":"c","containerEdits":{"mounts":[null],"hooks":[{}]}}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		write(t, dir, "a.json", text)
		s := &specs.Spec{}
		if err := (Registry{dir}).Inject(s, []string{"a.example/b=none-has-this-name"}); err != nil && !reflect.DeepEqual(s, &specs.Spec{}) {
			t.Errorf("%q has changed the container's specification, though it lacks the device", text)
		}
		_ = (Registry{dir}).Inject(s, []string{"a.example/b=c"})
	})
}
