// SPDX-License-Identifier: Apache-2.0

package imagestore

import "testing"

func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stored returns a store as the keeper of marks sees it.
func stored(i *Store) durability { return durability{i.Verifier.layers, i.repairer} }
