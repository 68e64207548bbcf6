// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	berthv1 "berth/api/berth/v1"
	"berth/internal/base/clock"
	"berth/internal/base/event"
)

var instantOfTest = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

// plant puts a secret into every text below v, which says where it was.
func plant(v reflect.Value, where string) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		plant(v.Elem(), where)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[clock.Instant]() {
			v.Set(reflect.ValueOf(clock.Stamped(instantOfTest)))
			return
		}
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(instantOfTest))
			return
		}
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				plant(v.Field(i), where+"."+f.Name)
			}
		}
	case reflect.String:
		v.SetString("hunter2" + strings.ToLower(where))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		plant(v.Index(0), where)
	case reflect.Map:
		e := reflect.New(v.Type().Elem()).Elem()
		plant(e, where)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("hunter2.key"+strings.ToLower(where)), e)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	case reflect.Float64:
		v.SetFloat(0.5)
	default:
		panic(fmt.Sprintf("the test cannot fill %s, which is a %s", where, v.Kind()))
	}
}

func add(t *testing.T, b *Bundle, of event.Names, n event.Entry) {
	t.Helper()
	raw, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	b.Add(of, raw)
}

// plantMessage puts a secret into each text of a message.
func plantMessage(m protoreflect.Message, path string) {
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		at := path + "." + string(f.Name())
		switch {
		case f.IsList() && f.Message() != nil:
			plantMessage(m.Mutable(f).List().AppendMutable().Message(), at)
		case f.Message() != nil && f.Message().FullName() != "google.protobuf.Timestamp":
			plantMessage(m.Mutable(f).Message(), at)
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString("hunter2"+at))
		}
	}
}

func written(t *testing.T, b *Bundle) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := b.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// unpacked returns the files of a bundle, one behind the other.
func unpacked(t *testing.T, file []byte) string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for in := tar.NewReader(zip); ; {
		_, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(&all, in); err != nil {
			t.Fatal(err)
		}
	}
}

// PROPERTIES 44: a secret is in every text of the settings, of each event and of the records. None is
// in the bundle, but for names: those of namespaces, pods, containers and images, and the UIDs of
// pods.
func TestNoSecretIsInABundle(t *testing.T) {
	state := &berthv1.StateResponse{}
	plantMessage(state.ProtoReflect(), ".state")
	b := New(Manifest{From: instantOfTest.Add(-time.Hour), To: instantOfTest}, state)
	kinds := map[string]bool{}
	for _, e := range event.Every() {
		v := reflect.New(reflect.TypeOf(e)).Elem()
		plant(v, "."+event.Kind(e))
		var of event.Names
		plant(reflect.ValueOf(&of).Elem(), ".of")
		add(t, b, of, event.Entry{At: clock.Stamped(instantOfTest), ID: "hunter2.id", Event: v.Interface().(event.Event)})
		kinds[event.Kind(e)] = true
	}
	for _, e := range b.Entries {
		delete(kinds, event.Kind(e.Entry.Event))
	}
	if len(kinds) > 0 {
		t.Errorf("these kinds of events are not written: %v", kinds)
	}
	text := unpacked(t, written(t, b))
	name := regexp.MustCompile(`\.(namespace|pod|uid|container|image|imageremoved.names)$`)
	for _, found := range regexp.MustCompile(`hunter2[a-z0-9.]*`).FindAllString(text, -1) {
		if !name.MatchString(found) && found != "hunter2.berthstarted.version" {
			t.Errorf("the bundle has %s", found)
		}
	}
	for _, want := range []string{"hunter2.of.pod", "hunter2.state.objects.of.pod"} {
		if !strings.Contains(text, want) {
			t.Errorf("the bundle lacks the name %s: the test looks in vain", want)
		}
	}
}

// What looks like a name and is not one that Kubernetes allows is no name.
func TestANameIsAName(t *testing.T) {
	for _, n := range []string{"a b", "password=x", "-x", strings.Repeat("x", 254), "x\ny", "Bearer abc=="} {
		if got := namesOf(event.Names{Pod: n}).Pod; got != other {
			t.Errorf("%q is written as %q", n, got)
		}
	}
	for ref, want := range map[string]string{
		"user:secret@registry.example/app": other,
		"https://registry.example/app":     other,
		"registry.example/app:1":           "registry.example/app:1",
		"busybox":                          "docker.io/library/busybox:latest",
		"":                                 "",
	} {
		if got := imageOf(ref); got != want {
			t.Errorf("the image %q is written as %q, want %q", ref, got, want)
		}
	}
	if got := cause(`exec: "curl -H token=abc": executable file not found in $PATH`); got != "executable file not found; not found" {
		t.Errorf("%q", got)
	}
	if got := cause("password: hunter2"); got != other {
		t.Errorf("%q", got)
	}
}

func TestABundleIsReadAgainAsItWas(t *testing.T) {
	id := strings.Repeat("ab", 32)
	of := event.Names{Namespace: "ns", Pod: "web", UID: "u-1", Sandbox: strings.Repeat("cd", 32), Container: "app"}
	said := []event.Said{{At: clock.Stamped(instantOfTest), Witness: "kernel", Code: 42, Measured: true, Ended: clock.Stamped(instantOfTest)}}
	b := New(Manifest{From: instantOfTest.Add(-time.Hour), To: instantOfTest, Made: instantOfTest, Version: "v1"}, &berthv1.StateResponse{
		Settings: &berthv1.Settings{LogLevel: "info", PullTimeout: "1m30s", Runtimes: []*berthv1.RuntimeHandler{{Name: "runc"}}},
		Objects: []*berthv1.Object{{
			Id:      id,
			Of:      &berthv1.Names{Namespace: "ns", Pod: "web"},
			Handler: "runc",
			State:   "EXITED",
			Image:   "registry.example/app:1",
		}},
	})
	add(t, b, of, event.Entry{At: clock.Stamped(instantOfTest.Add(-2 * time.Hour)), ID: id, Event: event.Removed{}})
	add(t, b, of, event.Entry{At: clock.Stamped(instantOfTest), ID: id, Event: event.ExitSettled{
		Exit:     event.Exit{Code: 42, Measured: true, Reason: "Error", Witness: "kernel"},
		Evidence: event.Evidence{Said: said, Stops: 1},
	}})
	b.Add(event.Names{}, []byte(`{"at":"2026-01-02T03:04:05Z","kind":"Teleported","event":{}}`))
	b.Add(event.Names{}, []byte(`[]`))
	got, err := Read(bytes.NewReader(written(t, b)))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.Entries, b.Entries) || !reflect.DeepEqual(got.Records, b.Records) ||
		!proto.Equal(got.Configuration, b.Configuration) || !reflect.DeepEqual(got.Manifest, b.Manifest) {
		t.Errorf("got\n%+v\nwant\n%+v", got, b)
	}
	if got.Manifest.Entries != 1 || len(got.Manifest.Missing) != 2 {
		t.Errorf("%+v", got.Manifest)
	}
	if c := got.Configuration; c.GetPullTimeout() != "1m30s" || c.GetLogLevel() != "info" || c.GetRuntimes()[0].GetName() != "runc" {
		t.Errorf("the settings are %+v", c)
	}
	if v := got.Verdicts(); len(v) != 1 || v[0].Code != 42 || v[0].Reason != "Error" || v[0].String() != "42 Error" {
		t.Errorf("%v", v)
	}
}

// If there are too many entries, the oldest are left out, and the manifest says how many.
func TestABundleIsBounded(t *testing.T) {
	b := New(Manifest{}, nil)
	b.max = 1000
	for range b.max + 1 {
		add(t, b, event.Names{}, event.Entry{At: clock.Stamped(instantOfTest), Event: event.Removed{}})
	}
	b.finish()
	if n := len(b.Entries); n != b.max-b.max/10+1 || !slices.ContainsFunc(b.Manifest.Missing, func(s string) bool {
		return strings.Contains(s, fmt.Sprint(b.max/10, " entries"))
	}) {
		t.Errorf("%d entries, %v", n, b.Manifest.Missing)
	}
}

// A file that is not a bundle, or is a newer one, is an error that says so.
func TestWhatIsNoBundleIsRefused(t *testing.T) {
	file := func(name, body string) []byte {
		var out bytes.Buffer
		zip := gzip.NewWriter(&out)
		tw := tar.NewWriter(zip)
		_ = tw.WriteHeader(&tar.Header{Name: name, Size: int64(len(body)), Mode: 0o600})
		_, _ = tw.Write([]byte(body))
		_, _ = tw.Close(), zip.Close()
		return out.Bytes()
	}
	for name, b := range map[string][]byte{
		"a text":          []byte("hello"),
		"another archive": file("other", "x"),
		"no format":       file("manifest.json", "{}"),
		"damaged":         file("manifest.json", "{"),
		"torn":            written(t, New(Manifest{}, nil))[:60],
	} {
		if _, err := Read(bytes.NewReader(b)); err == nil {
			t.Errorf("%s is read", name)
		}
	}
	if _, err := Read(bytes.NewReader(file("manifest.json", `{"format":99}`))); !errors.Is(err, ErrFormat) {
		t.Errorf("a newer format: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("hello"))
	b := New(Manifest{}, &berthv1.StateResponse{Objects: []*berthv1.Object{{State: "READY"}}})
	var out bytes.Buffer
	_ = b.Write(&out)
	f.Add(out.Bytes())
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = Read(bytes.NewReader(b)) })
}
