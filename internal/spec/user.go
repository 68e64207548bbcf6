// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// MaxEtcFile is how large an image's /etc/passwd and /etc/group may be, in bytes.
const MaxEtcFile = 4 << 20

type passwdEntry struct {
	name     string
	uid, gid uint32
	home     string
}

type groupEntry struct {
	name    string
	gid     uint32
	members []string
}

// resolveUser finds the user, the groups and the home directory of a container's process.
func resolveUser(in Container) (specs.User, string, error) {
	if len(in.Passwd) > MaxEtcFile || len(in.Group) > MaxEtcFile {
		return specs.User{}, "", fmt.Errorf("image %s: /etc/passwd or /etc/group is larger than %d bytes: %w", in.ImageName, MaxEtcFile, errdefs.ErrInvalidArgument)
	}
	sec := in.Config.GetLinux().GetSecurityContext()
	users, groups := parsePasswd(in.Passwd), parseGroup(in.Group)

	userStr, groupStr, _ := strings.Cut(in.Image.User, ":")
	if strings.ContainsAny(in.Image.User, "\n") {
		return specs.User{}, "", fmt.Errorf("user %q of image %s is more than a name: %w", in.Image.User, in.ImageName, errdefs.ErrInvalidArgument)
	}
	switch {
	case sec.GetRunAsUser() != nil:
		if v := sec.GetRunAsUser().GetValue(); v < 0 || v > math.MaxInt32 {
			return specs.User{}, "", fmt.Errorf("run_as_user %d is not a user ID: %w", v, errdefs.ErrInvalidArgument)
		}
		userStr, groupStr = strconv.FormatInt(sec.GetRunAsUser().GetValue(), 10), ""
	case sec.GetRunAsUsername() != "":
		userStr, groupStr = sec.GetRunAsUsername(), ""
	}
	if sec.GetRunAsGroup() != nil {
		if sec.GetRunAsUser() == nil && sec.GetRunAsUsername() == "" {
			return specs.User{}, "", fmt.Errorf("run_as_group needs a user: %w", errdefs.ErrInvalidArgument)
		}
		if v := sec.GetRunAsGroup().GetValue(); v < 0 || v > math.MaxInt32 {
			return specs.User{}, "", fmt.Errorf("run_as_group %d is not a group ID: %w", v, errdefs.ErrInvalidArgument)
		}
		groupStr = strconv.FormatInt(sec.GetRunAsGroup().GetValue(), 10)
	}
	if userStr == "" {
		userStr = "0"
	}
	u := passwdEntry{home: "/"}
	var err error
	if u.uid, err = parseID(userStr); err == nil {
		if i := slices.IndexFunc(users, func(e passwdEntry) bool { return e.uid == u.uid }); i >= 0 {
			u = users[i]
		} else if u.uid == 0 {
			u.home = "/root"
		}
	} else {
		if isNumber(userStr) {
			return specs.User{}, "", fmt.Errorf("user %q: %w", userStr, err)
		}
		i := slices.IndexFunc(users, func(e passwdEntry) bool { return e.name == userStr })
		if i < 0 {
			return specs.User{}, "", fmt.Errorf("user %q is not in /etc/passwd of image %s: %w", userStr, in.ImageName, errdefs.ErrInvalidArgument)
		}
		u = users[i]
	}
	if groupStr != "" {
		if u.gid, err = parseID(groupStr); err != nil {
			if isNumber(groupStr) {
				return specs.User{}, "", fmt.Errorf("group %q: %w", groupStr, err)
			}
			i := slices.IndexFunc(groups, func(e groupEntry) bool { return e.name == groupStr })
			if i < 0 {
				return specs.User{}, "", fmt.Errorf("group %q is not in /etc/group of image %s: %w", groupStr, in.ImageName, errdefs.ErrInvalidArgument)
			}
			u.gid = groups[i].gid
		}
	}
	out := specs.User{UID: u.uid, GID: u.gid, AdditionalGids: []uint32{u.gid}}
	add := func(g uint32) {
		if !slices.Contains(out.AdditionalGids, g) {
			out.AdditionalGids = append(out.AdditionalGids, g)
		}
	}
	if sec.GetSupplementalGroupsPolicy() == runtimeapi.SupplementalGroupsPolicy_Merge && u.name != "" {
		for _, g := range groups {
			if slices.Contains(g.members, u.name) {
				add(g.gid)
			}
		}
	}
	for _, g := range sec.GetSupplementalGroups() {
		if g < 0 || g > math.MaxInt32 {
			return specs.User{}, "", fmt.Errorf("supplemental group %d is not a group ID: %w", g, errdefs.ErrInvalidArgument)
		}
		add(uint32(g))
	}
	if u.home == "" {
		u.home = "/"
	}
	return out, u.home, nil
}

func isNumber(s string) bool {
	for _, r := range s {
		if r < '0' || r > '9' {
			return false
		}
	}
	return s != ""
}

// parseID takes what fits a kernel's ID and an int32: anything larger has become root before (CVE-2024-40635).
func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > math.MaxInt32 {
		return 0, fmt.Errorf("%q is not an ID between 0 and %d: %w", s, math.MaxInt32, errdefs.ErrInvalidArgument)
	}
	return uint32(n), nil
}

// parsePasswd reads passwd(5). Lines that are not entries are passed over.
func parsePasswd(b []byte) []passwdEntry {
	var list []passwdEntry
	for line := range bytes.Lines(b) {
		f := strings.Split(strings.TrimRight(string(line), "\r\n"), ":")
		if len(f) < 6 || f[0] == "" || strings.HasPrefix(f[0], "#") {
			continue
		}
		uid, err1 := parseID(f[2])
		gid, err2 := parseID(f[3])
		if err1 != nil || err2 != nil {
			continue
		}
		list = append(list, passwdEntry{name: f[0], uid: uid, gid: gid, home: f[5]})
	}
	return list
}

// parseGroup reads group(5), in the same way.
func parseGroup(b []byte) []groupEntry {
	var list []groupEntry
	for line := range bytes.Lines(b) {
		f := strings.Split(strings.TrimRight(string(line), "\r\n"), ":")
		if len(f) < 4 || f[0] == "" || strings.HasPrefix(f[0], "#") {
			continue
		}
		gid, err := parseID(f[2])
		if err != nil {
			continue
		}
		e := groupEntry{name: f[0], gid: gid}
		if f[3] != "" {
			e.members = strings.Split(f[3], ",")
		}
		list = append(list, e)
	}
	return list
}
