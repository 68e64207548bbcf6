// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/sha256"
	"encoding/binary"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// Pick returns those of several ways that the test takes this time: one, which depends only on the
// commit, the test, and what is chosen between. So a commit is always tested in the same way, and of
// many commits each way gets its share. BERTH_PICK is used in place of the commit; if it is "all",
// or if there is no commit, the test takes all ways.
func Pick[T any](t testing.TB, what string, from ...T) []T {
	t.Helper()
	seed := commit()
	if seed == "" || seed == "all" {
		return from
	}
	one := from[pick(seed, t.Name()+" "+what, len(from))]
	t.Logf("BERTH_PICK=%s: of the ways to choose the %s, %v of %v", seed, what, one, from)
	return []T{one}
}

// pick is a number below n that depends on the seed and the name.
func pick(seed, name string, n int) int {
	sum := sha256.Sum256([]byte(seed + "\x00" + name))
	return int(binary.BigEndian.Uint64(sum[:]) % uint64(n)) //nolint:gosec // below n
}

// commit is what BERTH_PICK says, or the commit that is checked out; "" without either, as in an
// unpacked archive.
var commit = sync.OnceValue(func() string {
	if s := os.Getenv("BERTH_PICK"); s != "" {
		return s
	}
	out, err := exec.Command("git", "rev-parse", "-q", "--verify", "HEAD").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
})
