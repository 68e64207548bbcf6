// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
)

// A process had ended, and what it had written was not there yet: a test failed once in many runs.
// Somebody else may hold the output open.
func TestAllOutputIsThereOnceAProcessHasEnded(t *testing.T) {
	n := &Node{t: t}
	for range 100 {
		p := n.Spawn("/bin/sh", "-c", "sleep 1 & echo one; printf two")
		if code := p.Wait(); code != 0 || p.Output() != "one\ntwo\n" {
			t.Fatalf("%d %q", code, p.Output())
		}
	}
}
