// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/pelletier/go-toml/v2/unstable"
)

// Loaded is a configuration with the places that its values come from.
type Loaded struct {
	Config
	Files []string // those that were read, in the order in which they count: a later one wins
	from  map[string]place
	files map[string]bool // by file: whether it has passwords
	dir   string          // of the drop-in files; "" if there is none
}

// place is where a value was set.
type place struct {
	file string
	line int
}

func (p place) String() string {
	if p.line == 0 {
		return p.file
	}
	return fmt.Sprintf("%s, line %d", p.file, p.line)
}

// commandLine is the place of a setting from a flag.
const commandLine = "the command line"

// DropIns returns the directory of the drop-in files of a configuration file, which is beside it:
// conf.d for config.toml, and NAME.conf.d for another NAME.toml. So two berths whose files are in
// one directory do not get each other's settings, nor does a draft that is checked.
func DropIns(file string) string {
	dir, name := filepath.Split(file)
	name = strings.TrimSuffix(name, ".toml")
	if name == "config" {
		return dir + "conf.d"
	}
	return dir + name + ".conf.d"
}

// Load reads a file and its drop-in files, and completes them with the defaults. A handler under
// [runtimes] in the file replaces the default one of the same name as a whole. A drop-in file,
// which is each file of [DropIns] whose name ends in .toml and does not begin with a dot, sets only
// its own keys: tables and handlers are merged key by key, and a list is replaced. They are read in
// the lexical order of their names. An error names the file and the line.
func Load(file string) (Loaded, error) { return load(file, false) }

// LoadIfThere is [Load] where the file need not exist. Its drop-in files are read in any case.
func LoadIfThere(file string) (Loaded, error) { return load(file, true) }

func load(file string, optional bool) (Loaded, error) {
	l := Loaded{Config: Default(), from: map[string]place{}, files: map[string]bool{}}
	b, err := os.ReadFile(file)
	switch {
	case optional && absent(err):
	case err != nil:
		return Loaded{}, fmt.Errorf("read configuration: %w", err)
	default:
		if l.Config, err = Parse(b); err != nil {
			return Loaded{}, fmt.Errorf("configuration %s: %w", file, err)
		}
		l.note(file, b, func(path []string) string {
			key, _ := field(reflect.ValueOf(&l.Config).Elem(), path)
			return key
		})
	}
	names, err := l.dropIns(DropIns(file))
	if err != nil {
		return Loaded{}, err
	}
	for _, name := range names {
		if err := l.merge(name); err != nil {
			return Loaded{}, err
		}
	}
	return l, nil
}

// absent reports whether an error means for certain that a file is not there.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// dropIns returns the paths of the drop-in files in a directory, in order. A directory that cannot
// be read is an error, because its settings are unknown.
func (l *Loaded) dropIns(dir string) (paths []string, err error) {
	entries, err := os.ReadDir(dir)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the directory of drop-in configurations: %w", err)
	}
	l.dir = dir
	for _, e := range entries { // sorted by name
		if strings.HasSuffix(e.Name(), ".toml") && !strings.HasPrefix(e.Name(), ".") {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, nil
}

// merge reads a drop-in file.
func (l *Loaded) merge(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read drop-in configuration: %w", err)
	}
	read, err := Parse(b)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", file, err)
	}
	dst, src := reflect.ValueOf(&l.Config).Elem(), reflect.ValueOf(&read).Elem()
	l.note(file, b, func(path []string) string {
		key, v := field(src, path)
		if v.IsValid() {
			overlay(dst, path, v)
		}
		return key
	})
	return nil
}

// note records the settings of a file, which has been parsed before. name is called with each key,
// in the order of the file, and returns its name as a setting.
func (l *Loaded) note(file string, b []byte, name func(path []string) string) {
	l.Files = append(l.Files, file)
	l.files[file] = false
	eachKey(b, func(path []string, line int, table bool) {
		if table {
			return
		}
		key := name(path)
		l.from[key] = place{file, line}
		l.files[file] = l.files[file] || strings.HasPrefix(key, "image.auth.")
	})
}

// eachKey calls f with each key of a file of TOML and its line, and with the tables.
func eachKey(b []byte, f func(path []string, line int, table bool)) {
	var p unstable.Parser
	p.Reset(b)
	var table []string
	var walk func(prefix []string, n *unstable.Node)
	walk = func(prefix []string, n *unstable.Node) {
		path, line := slices.Clone(prefix), 0
		for it := n.Key(); it.Next(); {
			path = append(path, string(it.Node().Data))
			line = p.Shape(it.Node().Raw).Start.Line
		}
		if n.Kind == unstable.Table {
			table = path
			f(path, line, true)
			return
		}
		if v := n.Value(); v.Kind == unstable.InlineTable {
			for it := v.Children(); it.Next(); {
				walk(path, it.Node())
			}
			return
		}
		f(path, line, false)
	}
	for p.NextExpression() {
		switch n := p.Expression(); n.Kind {
		case unstable.Table:
			walk(nil, n)
		case unstable.KeyValue:
			walk(table, n)
		}
	}
}

// lookup returns the field of a table that a key stands for. Keys are matched without regard to
// case, as the decoder does.
func lookup(table reflect.Value, key string) (tag string, v reflect.Value) {
	t := table.Type()
	for i := range t.NumField() {
		if tag = t.Field(i).Tag.Get("toml"); strings.EqualFold(tag, key) {
			return tag, table.Field(i)
		}
	}
	return key, reflect.Value{}
}

// field returns the value at a path of keys, and its name as a setting.
func field(table reflect.Value, path []string) (key string, v reflect.Value) {
	var names []string
	for v = table; len(path) > 0 && v.IsValid(); path = path[1:] {
		name := path[0]
		switch v.Kind() {
		case reflect.Struct:
			name, v = lookup(v, name)
		case reflect.Map:
			name, v = quoteKey(name), v.MapIndex(reflect.ValueOf(name))
		default:
			v = reflect.Value{}
		}
		names = append(names, name)
	}
	return strings.Join(names, "."), v
}

// overlay sets the value at a path of keys. Tables of a map that are not there are made.
func overlay(table reflect.Value, path []string, v reflect.Value) {
	_, f := lookup(table, path[0])
	switch {
	case len(path) == 1:
		f.Set(v)
	case f.Kind() == reflect.Map:
		if f.IsNil() {
			f.Set(reflect.MakeMap(f.Type()))
		}
		name := reflect.ValueOf(path[1])
		entry := reflect.New(f.Type().Elem()).Elem()
		if have := f.MapIndex(name); have.IsValid() {
			entry.Set(have)
		}
		if len(path) > 2 {
			overlay(entry, path[2:], v)
		}
		f.SetMapIndex(name, entry)
	default:
		overlay(f, path[1:], v)
	}
}

// Set changes one setting by its dotted name, as [Config.Set] does.
func (l *Loaded) Set(key, value string) error {
	if err := l.Config.Set(key, value); err != nil {
		return err
	}
	if l.from == nil {
		l.from = map[string]place{}
	}
	l.from[key] = place{file: commandLine}
	return nil
}

// Check is [Config.Check], with the place of each invalid setting.
func (l *Loaded) Check() error { return l.check(l.Origin) }

// Origin returns where a setting was set, as a file and a line, "" if it has its default. The key
// is one that [Config.Check] names: an element of a list is set where the list is, and a table
// where one of its keys was set last.
func (l *Loaded) Origin(key string) string {
	key, _, _ = strings.Cut(key, "[")
	if p, ok := l.from[key]; ok {
		return p.String()
	}
	var last place
	for k, p := range l.from {
		if !strings.HasPrefix(k, key+".") {
			continue
		}
		a, b := slices.Index(l.Files, p.file), slices.Index(l.Files, last.file)
		if last.file == "" || a > b || a == b && p.line > last.line {
			last = p
		}
	}
	if last.file == "" {
		return ""
	}
	return last.String()
}

// SetBy returns the settings that hold because a file set them, sorted. Settings that a later file
// or the command line has changed are not among them.
func (l *Loaded) SetBy(file string) (keys []string) {
	for k, p := range l.from {
		if p.file == file {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// Write is [Config.Write], with the place of each value that is not a default.
func (l *Loaded) Write(w io.Writer) error { return l.write(w, l.Origin) }

// CheckFiles returns an error for each file with dangerous permissions: only root may own it or
// write to it, because the one who names the OCI runtime is root in effect, and only root may read
// it if it has passwords. The same goes for the directory of drop-in files, because every user who
// may write to it can add one.
func (l *Loaded) CheckFiles() (errs []error) {
	for _, file := range l.Files {
		if err := exposed(file, l.files[file]); err != nil {
			errs = append(errs, err)
		}
	}
	if l.dir != "" {
		if err := exposed(l.dir, false); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// exposed returns an error if users other than root have dangerous permissions on a file. A file
// that does not exist is in order.
func exposed(path string, secret bool) error {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check the configuration file: %w", err)
	}
	// a file of Linux has that
	if owner := st.Sys().(*syscall.Stat_t).Uid; owner != 0 && int64(owner) != int64(os.Geteuid()) {
		return fmt.Errorf("%s belongs to the user %d, who can become root by it; run chown root %s", path, owner, path)
	}
	private := "600"
	if st.IsDir() {
		private = "700"
	}
	switch mode := st.Mode().Perm(); {
	case mode&0o022 != 0:
		return fmt.Errorf("%s has the mode %o: every user who may write to it can become root; run chmod %s %s", path, mode, private, path)
	case mode&0o044 != 0 && secret:
		return fmt.Errorf("%s has the mode %o and the passwords of registries: others may read them; run chmod %s %s", path, mode, private, path)
	}
	return nil
}
