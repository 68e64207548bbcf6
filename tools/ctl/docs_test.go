// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	berthv1 "berth/api/berth/v1"
	"berth/internal/base/config"
)

// docs/api.md has the fields of each list, and those that may be absent.
func TestTheFieldsOfListsAreDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z ]+)` \\| ([^|]+) \\|$").FindAllStringSubmatch(string(b), -1) {
		documented[m[1]] = m[2]
	}
	for name, row := range map[string]any{
		"ps":             containerRow{},
		"pods":           podRow{},
		"stats":          usageRow{},
		"images":         &berthv1.Image{},
		"images prune":   &berthv1.PrunedImage{},
		"images allowed": verdict{},
		"pulls":          &berthv1.Transfer{},
		"df":             &berthv1.Share{},
		"timeline":       &berthv1.Entry{},
		"debug lanes":    &berthv1.Lane{},
	} {
		if want := strings.Join(fieldsOf(row), ", "); documented[name] != want {
			t.Errorf("docs/api.md has for %s\n%s\nand its fields are\n%s", name, documented[name], want)
		}
		delete(documented, name)
	}
	if len(documented) > 0 {
		t.Errorf("no list has the fields %v", documented)
	}
}

// fieldsOf returns the names of fields in JSON, with ? for one that may be absent.
func fieldsOf(row any) (names []string) {
	if m, ok := row.(proto.Message); ok {
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			name := fields.Get(i).JSONName()
			if fields.Get(i).Message() != nil && !fields.Get(i).IsList() {
				name += "?"
			}
			names = append(names, name)
		}
		return names
	}
	for _, f := range reflect.VisibleFields(reflect.TypeOf(row)) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if strings.HasPrefix(options, "omit") {
			name += "?"
		}
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// Every command, flag and setting that a document names exists.
func TestDocumentsNameWhatExists(t *testing.T) {
	paths, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(paths) < 5 {
		t.Fatal(paths, err)
	}
	// A command is at the beginning of a code block's line, after a prompt, or in back quotes.
	command := regexp.MustCompile("(?m)(?:^    (?:[#$] )?|`)berth ([a-z][^`\n#|;)]*)")
	setting := regexp.MustCompile("`((?:log|containerd|network|image|lanes|cdi|logs|streams|nri|metrics|tracing)(?:\\.[a-z_]+)+)\\b")
	set := regexp.MustCompile(`--set ([a-z_.]+)=`)
	known := settings(t)
	commands := 0
	for _, path := range append(paths, "../../README.md") {
		if filepath.Base(path) == "cri-fields.md" { // its fields are CRI's
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range command.FindAllStringSubmatch(string(b), -1) {
			root := app{}.root()
			args := strings.Fields(m[1])
			cmd, rest, err := root.Find(args)
			if err != nil || cmd == root && args[0] != "completion" || !cmd.Runnable() && len(rest) > 0 && cmd != root {
				t.Errorf("%s names the command berth %s, which does not exist", path, m[1])
				continue
			}
			commands++
			if args[0] == "completion" || cmd.Name() == "exec" { // made by cobra; followed by another command
				continue
			}
			for _, a := range args {
				name, isLong := strings.CutPrefix(a, "--")
				name, _, _ = strings.Cut(name, "=")
				if isLong && cmd.Flag(name) == nil {
					t.Errorf("%s names berth %s: there is no flag --%s", path, m[1], name)
				}
			}
		}
		for _, m := range append(setting.FindAllStringSubmatch(string(b), -1), set.FindAllStringSubmatch(string(b), -1)...) {
			if !known[m[1]] && !strings.HasSuffix(m[1], ".json") { // a file
				t.Errorf("%s names the setting %s, which does not exist", path, m[1])
			}
		}
	}
	if commands < 30 {
		t.Errorf("only %d commands were found in the documents", commands)
	}
}

// settings are the dotted names in the default configuration.
func settings(t *testing.T) map[string]bool {
	t.Helper()
	var b bytes.Buffer
	if err := config.WriteDefault(&b); err != nil {
		t.Fatal(err)
	}
	all, table := map[string]bool{}, ""
	for line := range strings.Lines(b.String()) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "["); ok {
			table = strings.TrimSuffix(name, "]") + "."
			all[strings.TrimSuffix(name, "]")] = true // a table is named as a whole, too
		} else if key, _, ok := strings.Cut(line, " = "); ok && !strings.HasPrefix(line, "#") {
			all[table+key] = true
		}
	}
	return all
}
