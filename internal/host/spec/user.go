// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// MaxEtcFile is how large an image's /etc/passwd and /etc/group may be, in bytes.
	MaxEtcFile = 4 << 20
	// MaxGroups is how many groups a process may be in: NGROUPS_MAX of the kernel.
	MaxGroups = 65536
)

// resolveUser finds the user, the groups and the home directory of a container's process. The
// image's files are read in place and never copied: they are as large as an image's author likes.
func resolveUser(in Container) (specs.User, string, error) {
	if len(in.Passwd) > MaxEtcFile || len(in.Group) > MaxEtcFile {
		return specs.User{}, "", fmt.Errorf("image %s: /etc/passwd or /etc/group is larger than %d bytes: %w", in.ImageName, MaxEtcFile, errdefs.ErrInvalidArgument)
	}
	user, group, err := askedUser(in)
	if err != nil {
		return specs.User{}, "", err
	}
	u, err := findUser(in, user)
	if err != nil {
		return specs.User{}, "", err
	}
	if group != "" {
		if u.gid, err = findGroup(in, group); err != nil {
			return specs.User{}, "", err
		}
	}
	out := specs.User{UID: u.uid, GID: u.gid}
	if out.AdditionalGids, err = additionalGroups(in, u); err != nil {
		return specs.User{}, "", err
	}
	if u.home == "" {
		u.home = "/"
	}
	return out, u.home, nil
}

// askedUser returns the user and the group, each a name or a number, from the request, or else from
// the image. group is "" if neither names one.
func askedUser(in Container) (user, group string, err error) {
	if strings.ContainsAny(in.Image.User, "\n") { // CVE-2022-4318
		return "", "", fmt.Errorf("user %q of image %s is more than a name: %w", in.Image.User, in.ImageName, errdefs.ErrInvalidArgument)
	}
	user, group, _ = strings.Cut(in.Image.User, ":")
	sec := in.Config.GetLinux().GetSecurityContext()
	switch {
	case sec.GetRunAsUser() != nil && sec.GetRunAsUsername() != "":
		return "", "", fmt.Errorf("run_as_user and run_as_username cannot be together: %w", errdefs.ErrInvalidArgument)
	case sec.GetRunAsUser() != nil:
		if v := sec.GetRunAsUser().GetValue(); v < 0 || v > math.MaxInt32 {
			return "", "", fmt.Errorf("run_as_user: %d is not a user ID: %w", v, errdefs.ErrInvalidArgument)
		}
		user, group = strconv.FormatInt(sec.GetRunAsUser().GetValue(), 10), ""
	case sec.GetRunAsUsername() != "":
		user, group = sec.GetRunAsUsername(), ""
	}
	if sec.GetRunAsGroup() != nil {
		if sec.GetRunAsUser() == nil && sec.GetRunAsUsername() == "" {
			return "", "", fmt.Errorf("run_as_group: it needs a user: %w", errdefs.ErrInvalidArgument)
		}
		if v := sec.GetRunAsGroup().GetValue(); v < 0 || v > math.MaxInt32 {
			return "", "", fmt.Errorf("run_as_group: %d is not a group ID: %w", v, errdefs.ErrInvalidArgument)
		}
		group = strconv.FormatInt(sec.GetRunAsGroup().GetValue(), 10)
	}
	if user == "" {
		user = "0"
	}
	return user, group, nil
}

// passwdEntry holds the used fields of a line of passwd(5).
type passwdEntry struct {
	name     string
	uid, gid uint32
	home     string
}

// findUser finds a user by name or number. A number needs no entry in /etc/passwd.
func findUser(in Container, user string) (passwdEntry, error) {
	id, err := parseID(user)
	if err != nil && isNumber(user) {
		return passwdEntry{}, fmt.Errorf("user %q: %w", user, err)
	}
	byID := err == nil
	for line := range bytes.Lines(in.Passwd) {
		f, ok := entry[[6][]byte](line)
		if !ok || !byID && string(f[0]) != user {
			continue
		}
		uid, ok1 := idOf(f[2])
		gid, ok2 := idOf(f[3])
		if ok1 && ok2 && (!byID || uid == id) {
			return passwdEntry{name: string(f[0]), uid: uid, gid: gid, home: string(f[5])}, nil
		}
	}
	switch {
	case !byID:
		return passwdEntry{}, fmt.Errorf("user %q is not in /etc/passwd of image %s: %w", user, in.ImageName, errdefs.ErrInvalidArgument)
	case id == 0:
		return passwdEntry{home: "/root"}, nil
	default:
		return passwdEntry{uid: id, home: "/"}, nil
	}
}

// findGroup finds a group by name or number. A number needs no entry in /etc/group.
func findGroup(in Container, group string) (uint32, error) {
	id, err := parseID(group)
	if err == nil {
		return id, nil
	}
	if isNumber(group) {
		return 0, fmt.Errorf("group %q: %w", group, err)
	}
	for line := range bytes.Lines(in.Group) {
		if f, ok := entry[[4][]byte](line); ok && string(f[0]) == group {
			if gid, ok := idOf(f[2]); ok {
				return gid, nil
			}
		}
	}
	return 0, fmt.Errorf("group %q is not in /etc/group of image %s: %w", group, in.ImageName, errdefs.ErrInvalidArgument)
}

// additionalGroups returns the user's own group, the groups of the user in the image (unless the
// policy is Strict), and those of the request.
func additionalGroups(in Container, u passwdEntry) ([]uint32, error) {
	sec := in.Config.GetLinux().GetSecurityContext()
	list := []uint32{u.gid}
	known := map[uint32]bool{u.gid: true}
	add := func(g uint32) error {
		if known[g] {
			return nil
		}
		if len(list) == MaxGroups {
			return fmt.Errorf("user %q is in more than %d groups: %w", u.name, MaxGroups, errdefs.ErrInvalidArgument)
		}
		known[g] = true
		list = append(list, g)
		return nil
	}
	switch sec.GetSupplementalGroupsPolicy() {
	case runtimeapi.SupplementalGroupsPolicy_Strict:
	case runtimeapi.SupplementalGroupsPolicy_Merge:
		if u.name == "" {
			break
		}
		for line := range bytes.Lines(in.Group) {
			f, ok := entry[[4][]byte](line)
			if !ok || !isMember(f[3], u.name) {
				continue
			}
			if gid, ok := idOf(f[2]); ok {
				if err := add(gid); err != nil {
					return nil, err
				}
			}
		}
	default:
		return nil, fmt.Errorf("supplemental_groups_policy: %d is not known: %w", sec.GetSupplementalGroupsPolicy(), errdefs.ErrInvalidArgument)
	}
	for _, g := range sec.GetSupplementalGroups() {
		if g < 0 || g > math.MaxInt32 {
			return nil, fmt.Errorf("supplemental_groups: %d is not a group ID: %w", g, errdefs.ErrInvalidArgument)
		}
		if err := add(uint32(g)); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// parseID parses an ID that fits both the kernel's type and an int32: larger ones have ended up as
// root before (CVE-2024-40635).
func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > math.MaxInt32 {
		return 0, fmt.Errorf("%q is not an ID between 0 and %d: %w", s, math.MaxInt32, errdefs.ErrInvalidArgument)
	}
	return uint32(n), nil
}

// idOf is parseID for a field of a file.
func idOf(b []byte) (uint32, bool) {
	if len(b) == 0 || len(b) > 20 {
		return 0, false
	}
	var n uint64
	for _, c := range b {
		if c < '0' || c > '9' || n > math.MaxInt32 {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return uint32(n), n <= math.MaxInt32 // it is only used if it fits
}

// entry splits a line of passwd(5) or group(5) into its first fields, of which there must be as
// many as the array has; the last one ends at the next colon. It is false for lines that are not
// entries, which are passed over.
func entry[F [4][]byte | [6][]byte](line []byte) (fields F, ok bool) {
	line = bytes.TrimRight(line, "\r\n")
	if len(line) == 0 || line[0] == ':' || line[0] == '#' {
		return fields, false
	}
	more := true
	for i := range len(fields) {
		if !more {
			return fields, false
		}
		fields[i], line, more = bytes.Cut(line, []byte(":"))
	}
	return fields, true
}

// isMember reports whether a name is in the list of members of a group.
func isMember(members []byte, name string) bool {
	for more := true; more; {
		var m []byte
		m, members, more = bytes.Cut(members, []byte(","))
		if string(m) == name {
			return true
		}
	}
	return false
}
