// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/pelletier/go-toml/v2"

	"berth/internal/base/config"
)

// Setting is one of berth's.
type Setting struct {
	Key   string `json:"key"`
	Value any    `json:"value"` // a password is a config.Secret, which nothing writes but the file
	From  string `json:"from"`  // where it comes from
	path  []string
}

// Weights of a remark.
const (
	Blocks = "blocks" // nothing is applied while it is so
	Pods   = "pods"   // it changes something for pods
	Note   = "note"   // it changes nothing for pods
)

// Remark is about a setting without a counterpart in berth.
type Remark struct {
	Weight  string `json:"weight"`
	Setting string `json:"setting,omitempty"` // as the old runtime calls it
	Value   string `json:"value,omitempty"`
	File    string `json:"file,omitempty"`
	Means   string `json:"means"` // for the pods, or for the administrator of the node
}

// madeFile is a file that berth needs besides its settings.
type madeFile struct {
	path string
	body []byte
	mode uint32
	why  string
}

// facts are facts about the node that a translation needs.
type facts struct {
	Beside  bool                              // containerd goes on, without its CRI plug-in
	SELinux bool                              // the node has it
	which   func(program string) string       // finds a program; "" if there is none
	read    func(file string) ([]byte, error) // reads a file that the settings name
	full    func(dir string) bool             // whether a directory has anything in it
}

// translation is the result of translating the settings of a runtime.
type translation struct {
	facts
	settings []Setting
	remarks  []Remark
	files    []madeFile
	socket   string // of the old runtime
	errs     []error
}

// hostsDir is where the configurations of registries go that are made here.
const hostsDir = "/etc/berth/certs.d"

// defaults are berth's own settings, as TOML has them.
var defaults = func() map[string]any {
	b, err := toml.Marshal(config.Default())
	var m map[string]any
	if err != nil || toml.Unmarshal(b, &m) != nil {
		panic("the default settings are not TOML")
	}
	return m
}()

// isDefault reports whether berth has a value without being told.
func isDefault(path []string, value any) bool {
	var v any = defaults
	for _, p := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return false
		}
		if v, ok = m[p]; !ok {
			return len(path) > 2 && path[0] == "runtimes" && reflect.ValueOf(value).IsZero()
		}
	}
	return fmt.Sprint(v) == fmt.Sprint(value)
}

// set sets a setting of berth's, because of a value of the old runtime's. Defaults are left out.
func (t *translation) set(from string, value any, path ...string) {
	i := slices.IndexFunc(t.settings, func(s Setting) bool { return slices.Equal(s.path, path) })
	if i >= 0 {
		t.settings[i].Value, t.settings[i].From = value, from
		return
	}
	if isDefault(path, value) {
		return
	}
	t.settings = append(t.settings, Setting{Key: dotted(path), Value: value, From: from, path: path})
}

// from is the place of a leaf.
func (l *leaf) from() string {
	if l == nil {
		return "what holds where nothing is set"
	}
	return l.key + " in " + l.file
}

// say adds a remark about a leaf, which may be nil.
func (t *translation) say(weight string, l *leaf, format string, args ...any) {
	r := Remark{Weight: weight, Means: fmt.Sprintf(format, args...)}
	if l != nil {
		l.used = true
		r.Setting, r.File, r.Value = l.key, l.file, show(l)
	}
	t.remarks = append(t.remarks, r)
}

// show is the text of a value, with secrets hidden.
func show(l *leaf) string {
	for _, secret := range []string{"password", "auth", "token", "header", "_env", ".env"} {
		if strings.Contains(strings.ToLower(l.key), secret) {
			return "(hidden)"
		}
	}
	if b, err := json.Marshal(l.value); err == nil {
		return string(b)
	}
	return fmt.Sprint(l.value)
}

// find returns a leaf and marks it as dealt with; nil if there is none.
func (t *translation) find(in tree, keys ...string) *leaf {
	l, ok := in.sub(keys[:len(keys)-1]...)[keys[len(keys)-1]].(*leaf)
	if !ok {
		return nil
	}
	l.used = true
	return l
}

// wrong notes a value of another type than it has to be.
func (t *translation) wrong(l *leaf, want string) {
	t.errs = append(t.errs, fmt.Errorf("read %s: %s is %s, which is not %s; correct it", l.file, l.key, show(l), want))
}

func (t *translation) text(in tree, keys ...string) (string, *leaf) {
	l := t.find(in, keys...)
	if l == nil {
		return "", nil
	}
	v, ok := l.value.(string)
	if !ok {
		t.wrong(l, "a string")
	}
	return v, l
}

func (t *translation) flag(in tree, keys ...string) (bool, *leaf) {
	l := t.find(in, keys...)
	if l == nil {
		return false, nil
	}
	v, ok := l.value.(bool)
	if !ok {
		t.wrong(l, "true or false")
	}
	return v, l
}

func (t *translation) number(in tree, keys ...string) (int64, *leaf) {
	l := t.find(in, keys...)
	if l == nil {
		return 0, nil
	}
	v, ok := l.value.(int64)
	if !ok {
		t.wrong(l, "a number")
	}
	return v, l
}

func (t *translation) list(in tree, keys ...string) ([]string, *leaf) {
	l := t.find(in, keys...)
	if l == nil {
		return nil, nil
	}
	all, ok := l.value.([]any)
	list := []string{}
	for _, v := range all {
		s, isText := v.(string)
		ok = ok && isText
		list = append(list, s)
	}
	if !ok {
		t.wrong(l, "a list of strings")
	}
	return list, l
}

// nothing reports whether a value means that there is none.
func nothing(v any) bool {
	switch v := v.(type) {
	case []any:
		return len(v) == 0
	case string:
		return v == "" || v == "0s"
	default:
		return v == nil || reflect.ValueOf(v).IsZero()
	}
}

// sorted puts the heaviest first, and keeps the order otherwise.
func sorted(remarks []Remark) []Remark {
	weight := map[string]int{Blocks: 0, Pods: 1, Note: 2}
	slices.SortStableFunc(remarks, func(a, b Remark) int { return cmp.Compare(weight[a.Weight], weight[b.Weight]) })
	return remarks
}

// printable is a text for a comment: names of files may have anything.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// draft writes settings as a drop-in file. Passwords are left out where hidden is true.
func draft(settings []Setting, about string, hidden bool) []byte {
	var b bytes.Buffer
	for line := range strings.Lines(about) {
		fmt.Fprintf(&b, "# %s\n", strings.TrimSpace(line))
	}
	var tables []string
	by := map[string][]Setting{}
	for _, s := range settings {
		table := dotted(s.path[:len(s.path)-1])
		if by[table] == nil {
			tables = append(tables, table)
		}
		by[table] = append(by[table], s)
	}
	slices.Sort(tables) // values outside of tables come first
	for _, table := range tables {
		b.WriteString("\n")
		if table != "" {
			fmt.Fprintf(&b, "[%s]\n", table)
		}
		for _, s := range by[table] {
			value := s.Value
			if secret, ok := value.(config.Secret); ok {
				if value = string(secret); hidden {
					value = secret.String()
				}
			}
			line, err := toml.Marshal(map[string]any{s.path[len(s.path)-1]: value})
			if err != nil { // a value is a string, a number, a list of strings, true or false
				panic(err)
			}
			fmt.Fprintf(&b, "# %s\n%s", printable(s.From), line)
		}
	}
	return b.Bytes()
}
