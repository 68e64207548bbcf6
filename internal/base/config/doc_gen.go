// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
)

// WriteDefault writes the defaults as TOML with comments.
func WriteDefault(w io.Writer) error { return Default().Write(w) }

// Write writes c as TOML, every setting with a comment that explains it.
func (c Config) Write(w io.Writer) error { return c.write(w, func(string) string { return "" }) }

// write is Write. origin returns where a setting was set, or "".
func (c Config) write(w io.Writer, origin func(key string) string) error {
	fmt.Fprintln(w, "# Configuration of berth. `berth config default` prints all settings with their defaults.")
	return writeTable(w, "", reflect.ValueOf(c), origin)
}

func writeTable(w io.Writer, name string, v reflect.Value, origin func(key string) string) error {
	if name != "" {
		fmt.Fprintf(w, "\n[%s]\n", name)
	}
	t := v.Type()
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("doc") == "" {
			continue
		}
		value := v.Field(i).Interface()
		if s, ok := value.(Secret); ok { // the encoder takes it for a string
			value = s.String()
		}
		b, err := toml.Marshal(map[string]any{t.Field(i).Tag.Get("toml"): value})
		if err != nil {
			return fmt.Errorf("write %s: %w", t.Field(i).Name, err)
		}
		fmt.Fprintf(w, "\n# %s\n", t.Field(i).Tag.Get("doc"))
		key := strings.TrimPrefix(name+"."+t.Field(i).Tag.Get("toml"), ".")
		if from := origin(key); from != "" {
			fmt.Fprintf(w, "# Set in %s.\n", from)
		}
		fmt.Fprintf(w, "%s", b)
	}
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("doc") != "" {
			continue
		}
		key := t.Field(i).Tag.Get("toml")
		if name != "" {
			key = name + "." + key
		}
		if v.Field(i).Kind() == reflect.Map {
			keys := v.Field(i).MapKeys()
			slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
			for _, k := range keys {
				if err := writeTable(w, key+"."+quoteKey(k.String()), v.Field(i).MapIndex(k), origin); err != nil {
					return err
				}
			}
			continue
		}
		if err := writeTable(w, key, v.Field(i), origin); err != nil {
			return err
		}
	}
	return nil
}

// quoteKey writes a key of TOML, in quotes if it needs them.
func quoteKey(key string) string {
	bare := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_'
	}
	if key != "" && strings.IndexFunc(key, func(r rune) bool { return !bare(r) }) < 0 {
		return key
	}
	return strconv.Quote(key)
}

// keys returns the dotted names of all settings and tables, except credentials: they do not belong
// on a command line, which every user of the host can read.
func (c *Config) keys() []string {
	var keys []string
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		t := v.Type()
		for i := range t.NumField() {
			key := prefix + t.Field(i).Tag.Get("toml")
			switch {
			case t.Field(i).Tag.Get("doc") != "":
				keys = append(keys, key)
			case t.Field(i).Type == reflect.TypeFor[map[string]Auth]():
			case t.Field(i).Type.Kind() == reflect.Map:
				for _, name := range v.Field(i).MapKeys() {
					walk(key+"."+name.String()+".", v.Field(i).MapIndex(name))
				}
			default:
				keys = append(keys, key)
				walk(key+".", v.Field(i))
			}
		}
	}
	walk("", reflect.ValueOf(*c))
	return keys
}

// unknown returns an error that names the known setting with the spelling closest to key, if that
// is close enough to be a slip of the pen. If none is, the file may be one of a newer berth.
func unknown(key, where string) error {
	d := Default()
	best, least := "", len(key)+1
	for _, k := range d.keys() {
		if n := distance(key, k); n < least || n == least && k < best {
			best, least = k, n
		}
	}
	if least > max(2, len(key)/4) {
		return fmt.Errorf("%s%q is not a setting of this version of berth, and a newer one may have it; `berth config default` lists those of this version: %w", where, key, errdefs.ErrInvalidArgument)
	}
	return fmt.Errorf("%s%q is not a setting; did you mean %q?: %w", where, key, best, errdefs.ErrInvalidArgument)
}

// distance returns the Levenshtein distance of two strings.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		prev := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := prev
			if a[i] != b[j] {
				cost++
			}
			prev = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
