// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	_ "embed"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// table has the settings of a runtime and their counterparts. containerd.toml explains its form.
type table struct {
	Carried    []carried
	Translated []translated
	Lost       []lost
	Ignored    []string
}

// carried is a setting that is copied.
type carried struct {
	Setting string
	As      string // text, dir, dirs, list, flag or number
	To      string
	Values  map[string]any // what its values become; one that is not there is not copied
	Usual   []any          // values that need not be copied
}

// translated is a setting that code translates. Tests and docs/migrate.md read it.
type translated struct {
	Setting string
	Example any
	With    map[string]any // further settings that the example needs
	To      string
	Note    string
}

// lost is a setting without a counterpart.
type lost struct {
	Setting string
	Weight  string
	Means   string
	Usual   []any // values beside zero ones that do not matter
}

//go:embed containerd.toml
var containerdFile string

//go:embed crio.toml
var crioFile string

var containerdTable, crioTable = readTable(containerdFile), readTable(crioFile)

func readTable(text string) (t table) {
	if err := toml.NewDecoder(strings.NewReader(text)).DisallowUnknownFields().Decode(&t); err != nil {
		panic(fmt.Sprintf("a table of settings cannot be read: %v", err))
	}
	return t
}

// carry copies the settings that berth has as they are.
func (t *translation) carry(cfg tree, rows []carried) {
	cfg.each(func(at []string, _ *leaf) {
		for _, r := range rows {
			from := strings.Split(r.Setting, "/")
			if !matches(from, at) {
				continue
			}
			to := strings.Split(r.To, ".")
			if i, j := slices.Index(from, "*"), slices.Index(to, "*"); i >= 0 && j >= 0 {
				to[j] = at[i]
			}
			switch l := t.find(cfg, at...); {
			case slices.ContainsFunc(r.Usual, l.is):
			case r.Values == nil:
				t.copy(cfg, at, r.As, to)
			default:
				if v, ok := r.Values[fmt.Sprint(l.value)]; ok {
					t.set(l.from(), v, to...)
				}
			}
		}
	})
}

// is reports whether a setting has a value.
func (l *leaf) is(v any) bool { return fmt.Sprint(v) == fmt.Sprint(l.value) }

// everyHandler is the name in the path of a setting that each handler gets, where the old runtime
// has it for all of them.
const everyHandler = "*"

// given translates the defaults of one handler, or of every one.
type given struct {
	*translation
	handler string
}

// set sets one of them.
func (t given) set(from string, value any, key string) {
	t.translation.set(from, value, "runtimes", t.handler, "defaults", key)
}

// spread gives each handler the settings of every handler. Those outside of its defaults are for
// runc's shim.
func (t *translation) spread() {
	names, runc := []string{"runc"}, []string{"runc"}
	for _, s := range t.settings {
		if len(s.path) == 3 && s.path[0] == "runtimes" && s.path[1] != "runc" {
			switch s.path[2] {
			case "type":
				names = append(names, s.path[1])
			case "host_process":
				runc = append(runc, s.path[1])
			}
		}
	}
	all := t.settings
	t.settings = slices.DeleteFunc(slices.Clone(all), func(s Setting) bool { return slices.Contains(s.path, everyHandler) && s.path[0] == "runtimes" })
	for _, s := range all {
		if s.path[0] != "runtimes" || s.path[1] != everyHandler {
			continue
		}
		to := names
		if s.path[2] != "defaults" {
			to = runc
		}
		for _, name := range to {
			own := slices.Concat(s.path[:1], []string{name}, s.path[2:])
			if !slices.ContainsFunc(t.settings, func(have Setting) bool { return slices.Equal(have.path, own) }) {
				t.set(s.From, s.Value, own...)
			}
		}
	}
}

// copy copies one setting. An empty text stands for the default, and so does an empty list of
// directories.
func (t *translation) copy(in tree, at []string, as string, to []string) {
	switch as {
	case "flag":
		if v, l := t.flag(in, at...); v {
			t.set(l.from(), true, to...)
		}
	case "number":
		if v, l := t.number(in, at...); v > 0 {
			t.set(l.from(), v, to...)
		}
	case "text", "dir":
		v, l := t.text(in, at...)
		if l == nil || v == "" {
			return
		}
		if as == "dir" {
			v = path.Clean(v)
		}
		t.set(l.from(), v, to...)
	default:
		v, l := t.list(in, at...)
		if l == nil || as == "dirs" && len(v) == 0 || len(v) == 0 && to[0] == "runtimes" {
			return
		}
		if as == "dirs" {
			for i := range v {
				v[i] = path.Clean(v[i])
			}
		}
		t.set(l.from(), v, to...)
	}
}

// rest reports settings that no translation has taken. A setting without a rule is named, too.
func (t *translation) rest(in tree, rules table, unknown string) {
	in.each(func(at []string, l *leaf) {
		if l.used {
			return
		}
		l.used = true
		fits := func(setting string) bool { return matches(strings.Split(setting, "/"), at) }
		i := slices.IndexFunc(rules.Lost, func(r lost) bool { return fits(r.Setting) })
		switch {
		case nothing(l.value), i < 0 && slices.ContainsFunc(rules.Ignored, fits):
		case i < 0:
			t.say(Note, l, "%s", unknown)
		case !slices.ContainsFunc(rules.Lost[i].Usual, l.is):
			t.say(rules.Lost[i].Weight, l, "%s", rules.Lost[i].Means)
		}
	})
}

func matches(pattern, at []string) bool {
	for i, p := range pattern {
		switch {
		case p == "**":
			return true
		case i >= len(at) || p != "*" && p != at[i]:
			return false
		}
	}
	return len(pattern) == len(at)
}
