// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"berth/internal/base/clock"
)

// docs/events.md has the fields of each kind, so that a client of Records need not read Go.
func TestTheDocumentHasTheFieldsOfEachKind(t *testing.T) {
	const file, begin = "../../../docs/events.md", "\n## The kinds\n"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, have, ok := strings.Cut(string(b), begin)
	if !ok {
		t.Fatalf("%s has no section%s", file, begin)
	}
	var want strings.Builder
	want.WriteString("\n| kind | message | fields |\n| --- | --- | --- |\n")
	for _, e := range kinds {
		list := strings.Join(fieldsOf(t, reflect.TypeOf(e)), ", ")
		fmt.Fprintf(&want, "| `%s` | %s | %s |\n", Kind(e), Describe(e).Message, list)
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+want.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if have != want.String() {
		t.Errorf("the table in %s is not that of the kinds; -update writes it:\n%s", file, want.String())
	}
}

// fieldsOf returns the fields of a type, as the JSON of an entry has them.
func fieldsOf(t *testing.T, of reflect.Type) (list []string) {
	t.Helper()
	for i := range of.NumField() {
		f := of.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
			continue
		case f.Anonymous && name == "":
			list = append(list, fieldsOf(t, f.Type)...)
			continue
		case name == "":
			t.Errorf("%s.%s has no name in JSON", of, f.Name)
		}
		if strings.HasPrefix(options, "omit") {
			name += "?"
		}
		list = append(list, name+" "+wordOf(t, f.Type))
	}
	return list
}

func wordOf(t *testing.T, of reflect.Type) string {
	t.Helper()
	switch {
	case of == reflect.TypeFor[clock.Instant](), of == reflect.TypeFor[time.Time]():
		return "instant"
	case of == reflect.TypeFor[time.Duration]():
		return "nanoseconds"
	case of.Kind() == reflect.Pointer:
		return wordOf(t, of.Elem())
	case of.Kind() == reflect.String:
		return "text"
	case of.Kind() == reflect.Bool:
		return "boolean"
	case of.Kind() == reflect.Slice:
		return "list of " + wordOf(t, of.Elem())
	case of.Kind() == reflect.Struct:
		return "{" + strings.Join(fieldsOf(t, of), ", ") + "}"
	default:
		return "number"
	}
}
