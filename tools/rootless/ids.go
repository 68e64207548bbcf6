// SPDX-License-Identifier: Apache-2.0

package rootless

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
)

// Files in which the administrator lists the IDs that a user may map (subuid(5), subgid(5)).
const (
	subuid = "/etc/subuid"
	subgid = "/etc/subgid"
)

// enough is how many IDs images may be expected to use: those of an ordinary system, including the
// user nobody.
const enough = 65536

type span struct{ first, n uint32 }

// ids are the IDs that the user may map, behind the user's own.
type ids struct{ uids, gids []span }

// findIDs returns the IDs that root has given to the user.
func findIDs() (ids, error) {
	names := []string{strconv.Itoa(os.Getuid())}
	if u, err := user.Current(); err == nil {
		names = append(names, u.Username)
	}
	var found ids
	for file, to := range map[string]*[]span{subuid: &found.uids, subgid: &found.gids} {
		text, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			return found, err
		}
		*to = spansOf(string(text), names)
		if total(*to) < enough {
			return found, fmt.Errorf("user %s has %d subordinate IDs in %s, and images need %d: as root, "+
				"run `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s`, with a range that nobody else has",
				names[len(names)-1], total(*to), file, enough, names[len(names)-1])
		}
	}
	for _, program := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(program); err != nil {
			return found, fmt.Errorf("find the program %s, which maps IDs: %w: as root, install Debian's package uidmap, "+
				"or shadow-utils elsewhere", program, err)
		}
	}
	return found, nil
}

// spansOf returns the ranges of a user, who is called by a name or a number, in the text of a
// subuid(5). Other lines are not this program's to judge. A range that overlaps an earlier one,
// such as the same one under both names, is left out: newuidmap(1) maps no ID twice.
func spansOf(text string, names []string) []span {
	var spans []span
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 3 {
			continue
		}
		first, err1 := strconv.ParseUint(f[1], 10, 32)
		n, err2 := strconv.ParseUint(f[2], 10, 32)
		for _, name := range names {
			s := span{uint32(first), uint32(n)}
			if f[0] == name && err1 == nil && err2 == nil && n > 0 && !slices.ContainsFunc(spans, s.overlaps) {
				spans = append(spans, s)
				break
			}
		}
	}
	return spans
}

func (s span) overlaps(o span) bool {
	return uint64(s.first) < uint64(o.first)+uint64(o.n) && uint64(o.first) < uint64(s.first)+uint64(s.n)
}

func total(spans []span) (n uint64) {
	for _, s := range spans {
		n += uint64(s.n)
	}
	return n
}

// mapTo maps the IDs into the user namespace of a process: the user is its root.
func (i ids) mapTo(pid int) error {
	for _, m := range []struct {
		program string
		own     int
		spans   []span
	}{
		{"newuidmap", os.Getuid(), i.uids},
		{"newgidmap", os.Getgid(), i.gids},
	} {
		args := []string{strconv.Itoa(pid), "0", strconv.Itoa(m.own), "1"}
		next := uint64(1)
		for _, s := range m.spans {
			args = append(args, strconv.FormatUint(next, 10), strconv.FormatUint(uint64(s.first), 10), strconv.FormatUint(uint64(s.n), 10))
			next += uint64(s.n)
		}
		if out, err := exec.Command(m.program, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("map IDs: %s: %w: %s", m.program, err, bytes.TrimSpace(out))
		}
	}
	return nil
}
