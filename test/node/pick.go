// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// Pick returns those of several ways that the test takes this time: one, which depends only on the
// commit, the test, and what is chosen between. So a commit is always tested in the same way, and
// of many commits each way gets its share. BERTH_PICK replaces the commit; if it is "all", or if
// there is no commit, the test takes all ways.
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

// settled is how many commits ago the rooms of a laboratory have to have been as they are, for it
// to be tested in part.
const settled = 5

// Share returns one of so many parts of what a laboratory compares: which, depends only on the
// commit and the test, as with [Pick]. It returns everything where Pick would return all ways, and
// as long as one of the rooms, which are paths below [Module], is not what it was five commits ago,
// or git cannot tell. Without rooms it is a part whatever has changed.
func Share[T any](t testing.TB, what string, parts int, rooms []string, from ...T) []T {
	t.Helper()
	seed := commit()
	if seed == "" || seed == "all" || len(rooms) > 0 && changed(rooms) {
		return from
	}
	some := share(pick(seed, t.Name()+" "+what, parts), parts, from)
	t.Logf("BERTH_PICK=%s: %d of the %d %s; without a change in %v a commit takes no more", seed, len(some), len(from), what, rooms)
	return some
}

// share returns one of so many parts.
func share[T any](part, parts int, from []T) (some []T) {
	for i := part; i < len(from); i += parts {
		some = append(some, from[i])
	}
	return some
}

// changed reports whether one of the paths differs from its state settled commits ago. A copy with
// fewer commits than that, or without git, has changed.
func changed(paths []string) bool {
	args := []string{"diff", "--quiet", fmt.Sprint("HEAD~", settled), "--"}
	for _, p := range paths {
		args = append(args, ":/"+p) // of the whole repository, and not of this directory
	}
	_, err := git(args...)
	return err != nil
}

// pick is a number below n that depends on the seed and the name.
func pick(seed, name string, n int) int {
	sum := sha256.Sum256([]byte(seed + "\x00" + name))
	return int(binary.BigEndian.Uint64(sum[:]) % uint64(n))
}

// commit is BERTH_PICK, or the commit that is checked out; "" without either, as in an unpacked
// archive.
var commit = sync.OnceValue(func() string {
	if s := os.Getenv("BERTH_PICK"); s != "" {
		return s
	}
	out, err := git("rev-parse", "-q", "--verify", "HEAD")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
})

// git runs a command that reads the repository.
func git(args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return exec.CommandContext(ctx, "git", args...).Output()
}
