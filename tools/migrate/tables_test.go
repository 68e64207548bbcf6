// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// anyNode answers the questions of a translation: each file has credentials, and each directory has
// something in it.
var anyNode = facts{
	Beside: true,
	which:  func(program string) string { return "/usr/bin/" + program },
	read: func(file string) ([]byte, error) {
		if strings.HasSuffix(file, "mounts.conf") {
			return []byte("/a:/b\n"), nil
		}
		return []byte(`{"auths": {"x": {"auth": "dTpw"}}}`), nil
	},
	full: func(string) bool { return true },
}

// runtimes are the tables, with the translation that each belongs to.
var runtimes = []struct {
	name  string
	table table
	from  func(tree) (*translation, error)
}{
	{"containerd", containerdTable, func(cfg tree) (*translation, error) { return fromContainerd(cfg, 3, anyNode) }},
	{"CRI-O", crioTable, func(cfg tree) (*translation, error) { return fromCRIO(cfg, tree{}, anyNode) }},
}

// Each row of the tables is what the translation does: a setting with a counterpart becomes that,
// and one without is named.
func TestTheTablesOfSettingsAreTrue(t *testing.T) {
	examples := map[string]any{"text": "x", "dir": "/x", "dirs": []any{"/x"}, "list": []any{"x"}, "flag": true, "number": int64(7)}
	for _, r := range runtimes {
		rows := slices.Clone(r.table.Translated)
		for _, c := range r.table.Carried {
			example := examples[c.As]
			for v := range c.Values {
				if example = v; v == "true" {
					example = true
				}
			}
			rows = append(rows, translated{Setting: c.Setting, Example: example, To: c.To})
		}
		for _, row := range rows {
			cfg := tree{}
			plant(cfg, row.Setting, row.Example)
			for setting, v := range row.With {
				plant(cfg, setting, v)
			}
			tr, err := r.from(cfg)
			want := strings.Split(row.To, ".")
			if err != nil || !slices.ContainsFunc(tr.settings, func(s Setting) bool { return matches(want, s.path) }) {
				t.Errorf("%s = %v does not become %s, but %v: %v", row.Setting, row.Example, row.To, tr.settings, err)
			}
			if slices.ContainsFunc(tr.remarks, func(m Remark) bool { return m.Means == unknownSetting(r.name) }) {
				t.Errorf("%s is not known: %v", row.Setting, tr.remarks)
			}
		}
		for _, row := range r.table.Lost {
			cfg := tree{}
			plant(cfg, row.Setting, "x")
			tr, _ := r.from(cfg) // it may have to be a number
			if !slices.ContainsFunc(tr.remarks, func(m Remark) bool { return m.Weight == row.Weight && m.Means == row.Means }) {
				t.Errorf("nothing is said about %s: %v", row.Setting, tr.remarks)
			}
		}
	}
}

// plant puts a value at the place of a setting, with x for any name.
func plant(cfg tree, setting string, value any) {
	at := strings.Split(strings.ReplaceAll(strings.ReplaceAll(setting, "**", "x"), "*", "x"), "/")
	if value == "*" {
		value = "x"
	}
	put(cfg, &leaf{value: value, file: "/f", key: dotted(at)}, at...)
}

func unknownSetting(of string) string {
	return "this is a setting of " + of + " itself, or one that this berth does not know; berth has none like it"
}

// docs/migrate.md has the tables.
func TestTheDocumentHasTheTables(t *testing.T) {
	const file, begin, end = "../../docs/migrate.md", "\n## The settings\n", "\n## Back, by hand\n"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(b), begin)
	have, after, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatalf("%s has no sections%sand%s", file, begin, end)
	}
	var want strings.Builder
	want.WriteString("\nThese tables are those that `berth migrate` reads (`tools/migrate/containerd.toml` and `crio.toml`).\n" +
		"NAME stands for any name. Settings that are in neither table do not matter for pods.\n")
	for _, r := range runtimes {
		fmt.Fprintf(&want, "\n| %s | berth |\n| --- | --- |\n", r.name)
		var rows []string
		for _, c := range r.table.Carried {
			rows = append(rows, row(c.Setting, name(c.To, "."), ""))
		}
		for _, c := range r.table.Translated {
			rows = append(rows, row(c.Setting, name(c.To, "."), c.Note))
		}
		slices.Sort(rows)
		want.WriteString(strings.Join(rows, ""))
		fmt.Fprintf(&want, "\n| without a counterpart, %s | |\n| --- | --- |\n", r.name)
		for _, l := range r.table.Lost {
			if l.Weight != Note {
				want.WriteString(row(l.Setting, "", l.Means))
			}
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+want.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if have != want.String() {
		t.Errorf("the tables in %s are not those of the translation; -update writes them:\n%s", file, want.String())
	}
}

// row is a row of a table of the document.
func row(setting, to, text string) string {
	for _, prefix := range []string{"plugins/io.containerd.cri.v1.images/", "plugins/io.containerd.cri.v1.runtime/", "plugins/io.containerd.grpc.v1.cri/", "containerd/"} {
		setting = strings.TrimPrefix(setting, prefix)
	}
	setting = strings.ReplaceAll(setting, "io.containerd.", "")
	if to != "" && text != "" {
		text = " (" + text + ")"
	}
	return fmt.Sprintf("| %s | %s%s |\n", name(strings.TrimSuffix(setting, "/**"), "/"), to, text)
}

// name is a setting as people write it.
func name(setting, separator string) string {
	if host, ok := strings.CutPrefix(setting, "image.auth.*."); ok {
		return "`[image.auth.\"HOST\"]`: `" + host + "`"
	}
	return "`" + strings.ReplaceAll(strings.Join(strings.Split(setting, separator), "."), "*", "NAME") + "`"
}
