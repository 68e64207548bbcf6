// SPDX-License-Identifier: Apache-2.0

package event

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/internal/base/clock"
)

var update = flag.Bool("update", false, "rewrite testdata/events.golden")

var instant = clock.Stamped(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC))

// fill sets every field of v to something that is not zero.
func fill(t *testing.T, v reflect.Value, name string) {
	t.Helper()
	switch v.Interface().(type) {
	case clock.Instant:
		v.Set(reflect.ValueOf(instant))
		return
	case time.Time:
		v.Set(reflect.ValueOf(instant.Stamp()))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), name)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), v.Type().Field(i).Name)
		}
	case reflect.String:
		v.SetString(strings.ToLower(name))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int64: // a time.Duration
		v.SetInt(int64(1500 * time.Millisecond))
	case reflect.Int, reflect.Int32:
		v.SetInt(3)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(42)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(t, v.Index(i), fmt.Sprint(name, i))
		}
	default:
		t.Fatalf("the test cannot fill a field %s, which is a %s", name, v.Kind())
	}
}

// filled returns an event of each type, with every field set.
func filled(t *testing.T) []Event {
	t.Helper()
	var all []Event
	for _, e := range kinds {
		v := reflect.New(reflect.TypeOf(e)).Elem()
		fill(t, v, "")
		all = append(all, v.Interface().(Event))
	}
	return all
}

func TestEveryEventIsReadAgainAsItWas(t *testing.T) {
	for _, e := range slices.Concat(kinds, filled(t)) {
		for _, id := range []string{"c1", ""} {
			want := Entry{At: instant, ID: id, Event: e}
			b, err := json.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			var got Entry
			if err := json.Unmarshal(b, &got); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s\n is %+v, %v\nwant %+v", b, got, err, want)
			}
			var fields map[string]json.RawMessage
			if err := json.Unmarshal(b, &fields); err != nil || string(fields["kind"]) != `"`+Kind(e)+`"` {
				t.Errorf("%s: the kind is not %s: %v", b, Kind(e), err)
			}
		}
	}
}

// A berth that was upgraded and then replaced by the one before reads on.
func TestAnEventOfANewerBerthIsAnErrorOfItsOwn(t *testing.T) {
	var n Entry
	err := json.Unmarshal([]byte(`{"at":"2026-01-02T03:04:05.000000006Z","id":"c1","kind":"Teleported","event":{"to":"mars"}}`), &n)
	if !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "Teleported") {
		t.Errorf("got %v", err)
	}
	if n.ID != "c1" || n.At != instant || n.Event != nil {
		t.Errorf("got %+v", n)
	}
	err = json.Unmarshal([]byte(`{"at":"2026-01-02T03:04:05Z","kind":"StopRequested","event":{"timeout":1,"mood":"a field of a newer one"}}`), &n)
	if want := (StopRequested{Timeout: 1}); err != nil || n.Event != want {
		t.Errorf("a field that is not known: %+v, %v", n, err)
	}
	for _, bad := range []string{`{"kind":"StopRequested","event":{"timeout":"long"}}`, `{"kind":"StopRequested"}`, `[]`} {
		if err := json.Unmarshal([]byte(bad), &n); err == nil || errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if b, err := json.Marshal(Entry{At: instant}); err == nil {
		t.Errorf("an entry without an event is %s", b)
	}
}

// The ID of an entry is beside its line: the text of an error repeated it twice more.
func TestALineDoesNotRepeatTheID(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	other := strings.Repeat("f", 64)
	n := Entry{ID: id, Event: AttemptFailed{Err: "release task of " + id + ": delete task " + id + ": " + other + " is busy"}}
	if got, want := n.Line().Err, "release task of 0123456789abc: delete task 0123456789abc: "+other+" is busy"; got != want {
		t.Errorf("got %q", got)
	}
	for _, id := range []string{"", "c1"} {
		n := Entry{ID: id, Event: AttemptFailed{Err: "delete task c1: busy"}}
		if got := n.Line().Err; got != "delete task c1: busy" {
			t.Errorf("of %q: %q", id, got)
		}
	}
}

// describing returns the line methods of this package's types, by the name of the type.
func describing(t *testing.T) map[string]*ast.FuncDecl {
	t.Helper()
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*ast.FuncDecl{}
	for _, path := range paths {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil && fn.Name.Name == "line" {
				found[fn.Recv.List[0].Type.(*ast.Ident).Name] = fn
			}
		}
	}
	return found
}

// An event that is not in the list could be written and not read.
func TestTheListHasEveryTypeOnce(t *testing.T) {
	found := describing(t)
	for name := range found {
		if _, ok := types[name]; !ok {
			t.Errorf("%s is an event, and not in the list of kinds.go", name)
		}
	}
	if len(kinds) != len(found) || len(types) != len(found) {
		t.Errorf("%d types are events, and the list has %d, of %d types", len(found), len(kinds), len(types))
	}
}

// The message stands in the source as it is in the log, so that grep finds it, and is that of no
// other event.
func TestEveryMessageIsALiteralOfItsOwn(t *testing.T) {
	of := map[string]string{}
	methods := describing(t)
	for i, e := range filled(t) {
		name, line := Kind(e), Describe(e)
		if other, ok := of[line.Message]; ok {
			t.Errorf("%s and %s have the same message: %q", name, other, line.Message)
		}
		of[line.Message] = name
		literal := false
		ast.Inspect(methods[name].Body, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && len(call.Args) > 1 {
				l, ok := call.Args[1].(*ast.BasicLit)
				literal = literal || ok && l.Value == `"`+line.Message+`"`
			}
			return true
		})
		if !literal {
			t.Errorf("the message of %s is not a literal: %q", name, line.Message)
		}
		if zero := Describe(kinds[i]); zero.Message != line.Message || zero.Level != line.Level {
			t.Errorf("the message or level of %s depends on its fields: %q, %q", name, line.Message, zero.Message)
		}
		if line.Actor == "" {
			t.Errorf("%s does not say who made it happen", name)
		}
	}
}

// What a person reads, and what is on disk, for each event.
func TestEventsReadLikeThis(t *testing.T) {
	var got strings.Builder
	for _, e := range filled(t) {
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		line := Describe(e)
		fmt.Fprintf(&got, "%s %s\n  %s, by %s: %s", Kind(e), b, line.Level, line.Actor, line.Message)
		for _, a := range line.Attrs {
			fmt.Fprintf(&got, " %s", a)
		}
		if line.Err != "" {
			fmt.Fprintf(&got, " err=%s", line.Err)
		}
		got.WriteByte('\n')
	}
	const path = "testdata/events.golden"
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("%s differs from:\n%s", path, got.String())
	}
}

// set is a clock that was set ahead by an hour.
type set struct {
	clock.Source
	ahead time.Duration
}

func (s *set) SinceBoot() time.Duration { return time.Hour }
func (s *set) Boot() string             { return "boot" }

func (s *set) Read() (time.Duration, time.Time) { return time.Hour, instant.Stamp().Add(s.ahead) }

// PROPERTIES 70: each instant of an entry is shown in wall time as it is known now, and the entry
// itself stays as it is.
func TestAnEntryIsShownInWallTime(t *testing.T) {
	machine := &set{}
	c := clock.New(machine)
	machine.ahead = time.Hour
	c.Look()
	was, want := `"2026-01-02T03:04:05.000000006Z"`, `"2026-01-02T04:04:05.000000006Z"`
	for _, e := range Every() {
		v := reflect.New(reflect.TypeOf(e)).Elem()
		fill(t, v, "")
		n := Entry{At: instant, ID: "c1", Event: v.Interface().(Event)}
		before, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		shown, err := json.Marshal(n.Shown(c))
		if err != nil {
			t.Fatal(err)
		}
		after, _ := json.Marshal(n)
		if string(before) != string(after) {
			t.Errorf("%s was changed: %s", Kind(n.Event), after)
		}
		if _, ok := e.(ClockSet); !ok && string(shown) != strings.ReplaceAll(string(before), was, want) {
			t.Errorf("%s is shown as %s", before, shown)
		}
	}
}
