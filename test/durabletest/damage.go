// SPDX-License-Identifier: Apache-2.0

package durabletest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Damage calls try after each of many changes of a file: a bit of it is flipped, or its end is cut
// off. where names the change. BERTH_PICK=all makes a thousand of each. BERTH_SEED repeats those of
// an earlier test.
func Damage(t *testing.T, path string, try func(where string)) {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("BERTH_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("BERTH_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	whole, err := os.ReadFile(path)
	if err != nil || len(whole) == 0 {
		t.Fatalf("%d bytes, %v", len(whole), err)
	}
	for i := range 2 * Rounds(30) {
		b := bytes.Clone(whole)
		var where string
		if bit := r.IntN(8 * len(b)); i%2 == 0 {
			where = fmt.Sprintf("bit %d of %s", bit, path)
			b[bit/8] ^= 1 << (bit % 8)
		} else {
			where = fmt.Sprintf("%s cut at %d", path, bit/8)
			b = b[:bit/8]
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		try(where)
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Rounds returns how many random changes of each kind a test makes: few, or a thousand with
// BERTH_PICK=all.
func Rounds(few int) int {
	if os.Getenv("BERTH_PICK") == "all" {
		return 1000
	}
	return few
}
