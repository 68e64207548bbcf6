// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// escapes are the holes of runc through which a container that may choose its mounts got out, up to
// the versions that fixed names.
const escapes = "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881"

// fixed are the first versions of runc without these, of each series that has one. A newer series
// has none of them, and an older series all.
var fixed = []ociVersion{{1, 2, 8, 0}, {1, 3, 3, 0}, {1, 4, 0, 3}}

// ociVersion is a version of an OCI runtime: major, minor, patch, and the number of the release
// candidate, 0 for a release.
type ociVersion [4]int

// runcVersion finds the version in the output of runc --version.
var runcVersion = regexp.MustCompile(`(?m)^runc version (\d+)\.(\d+)\.(\d+)(?:-rc\.?(\d+))?`)

// parseRunc returns the version of runc. It returns false for another OCI runtime, such as crun,
// for which no such bound is known.
func parseRunc(out []byte) (v ociVersion, ok bool) {
	m := runcVersion.FindSubmatch(out)
	if m == nil {
		return v, false
	}
	for i := range v {
		v[i], _ = strconv.Atoi(string(m[i+1])) // "" is 0
	}
	return v, true
}

// String writes the version as runc does.
func (v ociVersion) String() string {
	s := fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2])
	if v[3] > 0 {
		s += fmt.Sprintf("-rc.%d", v[3])
	}
	return s
}

// before reports whether v is older than w. A release candidate is older than its release.
func (v ociVersion) before(w ociVersion) bool {
	rank := func(v ociVersion) ociVersion {
		if v[3] == 0 {
			v[3] = 1 << 30
		}
		return v
	}
	a, b := rank(v), rank(w)
	return slices.Compare(a[:], b[:]) < 0
}

// hasEscapes reports whether runc of this version has the holes.
func (v ociVersion) hasEscapes() bool {
	for _, f := range fixed {
		if v[0] == f[0] && v[1] == f[1] {
			if f[3] == 0 {
				f[3] = 1 // the candidates of that release have the fix
			}
			return v.before(f)
		}
	}
	return v.before(fixed[0])
}

// Holes interprets the output of an OCI runtime's --version. If that is a runc with known holes, it
// returns its version, the holes, and the first versions without them; otherwise holes is empty.
func Holes(out []byte) (version, holes, without string) {
	v, ok := parseRunc(out)
	if !ok || !v.hasEscapes() {
		return v.String(), "", ""
	}
	return v.String(), escapes, fmt.Sprintf("%s, %s, or a newer one", fixed[0], fixed[1])
}
