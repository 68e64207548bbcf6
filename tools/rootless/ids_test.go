// SPDX-License-Identifier: Apache-2.0

package rootless

import (
	"slices"
	"testing"
)

// The lines of others, and those that are not in the form of subuid(5), are left alone. What is there twice
// counts once.
func TestTheIDsOfAUserAreFoundByNameAndByNumber(t *testing.T) {
	text := "root:1:5\nme:100000:65536\n1000:300000:10\nyou:400000:65536\nme:nonsense:3\nme:7\n\n1000:100000:65536\n1000:165000:100\nme:500000:0\nme:4294967296:1\n"
	got := spansOf(text, []string{"1000", "me"})
	if want := []span{{100000, 65536}, {300000, 10}}; !slices.Equal(got, want) || total(got) != 65546 {
		t.Errorf("got %v, which are %d", got, total(got))
	}
	if got := spansOf(text, []string{"1001", "nobody"}); len(got) > 0 {
		t.Errorf("somebody else's IDs are %v", got)
	}
}
