// SPDX-License-Identifier: Apache-2.0

package ctrd

import "testing"

// PROPERTIES 46: a plug-in of containerd 2.0 does not start beside a sandbox object that is not its own,
// and so a task is guarded only where the version is known to remove what guards it, or to pass over it.
func TestATaskIsGuardedWhereThePluginStartsNevertheless(t *testing.T) {
	for version, want := range map[string]Guards{
		"1.7.29":         GuardsLeft,
		"v1.7.24~ds1":    GuardsLeft,
		"2.0.5":          GuardsFatal,
		"v2.1.3":         GuardsFatal,
		"v2.1.4":         GuardsRemoved,
		"2.2.0-rc.1":     GuardsRemoved,
		"v2.4.2+unknown": GuardsRemoved,
		"3.0.0":          GuardsRemoved,
		"":               GuardsFatal,
		"main":           GuardsFatal,
	} {
		if got := guardsOf(version); got != want {
			t.Errorf("the plug-in of containerd %q: guards are %s, want %s", version, got, want)
		}
	}
}
