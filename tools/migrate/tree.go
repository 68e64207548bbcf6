// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/pelletier/go-toml/v2"
)

// leaf is a value of a file that is not a table.
type leaf struct {
	value any
	file  string // that has set it
	key   string // its name there
	used  bool   // it was dealt with
}

// tree has a *leaf or a tree for each key of a table.
type tree map[string]any

// parseTOML reads a file. An error names the file and the line.
func parseTOML(file string, text []byte) (tree, error) {
	var m map[string]any
	if err := toml.Unmarshal(text, &m); err != nil {
		var bad *toml.DecodeError
		if errors.As(err, &bad) {
			row, col := bad.Position()
			return nil, fmt.Errorf("read %s: line %d, column %d: %w; correct the file, or take it away if nothing uses it", file, row, col, err)
		}
		return nil, fmt.Errorf("read %s: %w; correct the file, or take it away if nothing uses it", file, err)
	}
	return grow(m, file, nil), nil
}

func grow(m map[string]any, file string, above []string) tree {
	t := tree{}
	for k, v := range m {
		path := append(slices.Clone(above), k)
		if sub, ok := v.(map[string]any); ok {
			t[k] = grow(sub, file, path)
			continue
		}
		t[k] = &leaf{value: v, file: file, key: dotted(path)}
	}
	return t
}

// dotted is the name of a setting as it is written in TOML.
func dotted(path []string) string {
	quoted := make([]string, len(path))
	for i, p := range path {
		quoted[i] = p
		if p == "" || strings.Trim(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
			if quoted[i] = "'" + p + "'"; strings.ContainsFunc(p, func(r rune) bool { return r == '\'' || !unicode.IsPrint(r) }) {
				quoted[i] = strconv.Quote(p)
			}
		}
	}
	return strings.Join(quoted, ".")
}

// merge puts the values of a later file over t. Lists are appended to if appended is true, without
// duplicates.
func (t tree) merge(over tree, appended bool) {
	for k, v := range over {
		switch v := v.(type) {
		case tree:
			have, ok := t[k].(tree)
			if !ok {
				have = tree{}
				t[k] = have
			}
			have.merge(v, appended)
		case *leaf:
			have, ok := t[k].(*leaf)
			more, isList := v.value.([]any)
			if ok && isList && appended {
				list, _ := have.value.([]any)
				list = slices.Clone(list)
				for _, m := range more {
					if !slices.ContainsFunc(list, func(l any) bool { return reflect.DeepEqual(l, m) }) {
						list = append(list, m)
					}
				}
				t[k] = &leaf{value: list, file: v.file, key: v.key}
				continue
			}
			t[k] = v
		}
	}
}

// sub is the table at a path; it is empty if there is none.
func (t tree) sub(path ...string) tree {
	for _, p := range path {
		next, ok := t[p].(tree)
		if !ok {
			return tree{}
		}
		t = next
	}
	return t
}

// names are the names of the tables in t, sorted.
func (t tree) names() (names []string) {
	for k, v := range t {
		if _, ok := v.(tree); ok {
			names = append(names, k)
		}
	}
	slices.Sort(names)
	return names
}

// each calls f for every leaf, in the order of their paths.
func (t tree) each(f func(path []string, l *leaf)) { t.walk(nil, f) }

func (t tree) walk(above []string, f func(path []string, l *leaf)) {
	for _, k := range slices.Sorted(maps.Keys(t)) {
		path := append(slices.Clone(above), k)
		switch v := t[k].(type) {
		case tree:
			v.walk(path, f)
		case *leaf:
			f(path, v)
		}
	}
}

// useAll marks everything below as dealt with.
func (t tree) useAll() { t.each(func(_ []string, l *leaf) { l.used = true }) }
