// SPDX-License-Identifier: Apache-2.0

// Package version identifies this build of berth. The two variables are set by the linker (see the
// Makefile); a plain `go build` leaves them as they are here.
package version

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	// Version is the output of `git describe --tags --always --dirty`: a tag, a tag with the number
	// of commits after it, or a bare commit; with -dirty if the tree had changes.
	Version = "dev"
	// Commit is the full hash, or "" if it is not known.
	Commit = ""
)

// base is the version of a tree that has no tag.
const base = "0.1.0"

var (
	hash     = regexp.MustCompile(`^[0-9a-f]{7,40}$`)
	release  = regexp.MustCompile(`^v?([0-9]{1,9})(?:\.([0-9]{1,9}))?(?:\.([0-9]{1,9}))?(-[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?`)
	distance = regexp.MustCompile(`-([0-9]+)-g([0-9a-f]{7,40})$`)
	illegal  = regexp.MustCompile(`[^0-9A-Za-z-]+`)
)

// Semantic returns the version as semver.org defines it: three numbers, a pre-release if the tag
// has one, and the commit as build metadata. Programs that ask for the version of a runtime, such
// as the kubelet, refuse anything else, and the node then shows its runtime as Unknown.
func Semantic() string {
	number, metadata := base, []string(nil)
	rest, dirty := strings.CutSuffix(Version, "-dirty")
	if m := distance.FindStringSubmatch(rest); m != nil {
		rest, metadata = strings.TrimSuffix(rest, m[0]), []string{m[1], "g" + m[2]}
	}
	m := release.FindStringSubmatch(rest)
	switch {
	case m != nil && !hash.MatchString(rest): // a hash may consist of digits alone
		number = strings.Join([]string{decimal(m[1]), decimal(m[2]), decimal(m[3])}, ".") + preRelease(m[4])
		rest = rest[len(m[0]):]
	case rest == "":
		rest = "unknown"
	}
	if rest = strings.Trim(illegal.ReplaceAllString(rest, "."), "."); rest != "" {
		metadata = append(metadata, rest)
	}
	if dirty {
		metadata = append(metadata, "dirty")
	}
	if len(metadata) > 0 {
		number += "+" + strings.Join(metadata, ".")
	}
	return number
}

// decimal returns a number without leading zeros, which semantic versions must not have.
func decimal(digits string) string {
	if d := strings.TrimLeft(digits, "0"); d != "" {
		return d
	}
	return "0"
}

// preRelease removes leading zeros from the numbers of a pre-release such as -rc.01.
func preRelease(s string) string {
	if s == "" {
		return ""
	}
	parts := strings.Split(s[1:], ".")
	for i, p := range parts {
		if strings.Trim(p, "0123456789") == "" {
			parts[i] = decimal(p)
		}
	}
	return "-" + strings.Join(parts, ".")
}

// String returns the version for people: the semantic version, and the beginning of the commit if
// the version does not contain it: "0.3.0 (1a2b3c4d5e6f)".
func String() string {
	v, short := Semantic(), Commit
	if len(short) > 12 {
		short = short[:12]
	}
	if short == "" || len(short) >= 7 && strings.Contains(v, short[:7]) {
		return v
	}
	return fmt.Sprintf("%s (%s)", v, short)
}
