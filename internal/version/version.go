// SPDX-License-Identifier: Apache-2.0

// Package version says which berth this is. The two variables are set by the
// linker (see the Makefile); a plain `go build` leaves them as they are here.
package version

import "fmt"

var (
	// Version is a tag, a tag with the number of commits after it, or a bare
	// commit; with -dirty if the tree had changes.
	Version = "dev"
	// Commit is the full hash, "" if unknown.
	Commit = ""
)

// String is the version with the first digits of the commit, if that is not the
// version itself: "v0.3.0 (1a2b3c4d5e6f)".
func String() string {
	short := Commit
	if len(short) > 12 {
		short = short[:12]
	}
	if short == "" || len(Version) >= 7 && len(short) >= 7 && Version[:7] == short[:7] {
		return Version
	}
	return fmt.Sprintf("%s (%s)", Version, short)
}
