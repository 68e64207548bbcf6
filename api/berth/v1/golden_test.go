// SPDX-License-Identifier: Apache-2.0

package berthv1

import (
	"encoding/hex"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

var update = flag.Bool("update", false, "write the golden files of messages that have none")

// fill sets each field of a message to a value that depends on its number alone.
func fill(m protoreflect.Message) {
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		switch {
		case f.IsMap():
			v := m.Mutable(f).Map()
			e := v.NewValue()
			fill(e.Message())
			v.Set(protoreflect.ValueOfString("key").MapKey(), e)
		case f.IsList() && f.Message() != nil:
			fill(m.Mutable(f).List().AppendMutable().Message())
		case f.IsList():
			m.Mutable(f).List().Append(value(f))
		case f.Message() != nil:
			fill(m.Mutable(f).Message())
		default:
			m.Set(f, value(f))
		}
	}
}

func value(f protoreflect.FieldDescriptor) protoreflect.Value {
	n := f.Number()
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(1000 + int64(n))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n)) // a number of a field is positive
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(1000 + uint64(n))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(n))
	default:
		return protoreflect.ValueOfString(string(f.Name()))
	}
}

// fields returns the fields that a message has, with their values, as PATH=VALUE.
func fields(m protoreflect.Message, path string, into map[string]string) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := path + "." + string(f.Name())
		switch {
		case f.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				fields(v.Message(), at+"["+k.String()+"]", into)
				return true
			})
		case f.IsList() && f.Message() != nil:
			fields(v.List().Get(0).Message(), at, into)
		case f.IsList():
			into[at] = v.List().Get(0).String()
		case f.Message() != nil:
			fields(v.Message(), at, into)
		default:
			into[at] = v.String()
		}
		return true
	})
}

// A client of the first version speaks to every later berth. Each file of testdata has the bytes of a
// message of a method, and the fields that these bytes meant when they were written. A file is never
// changed: a message that gets another field still has to mean the same for the bytes of before.
func TestTheBytesOfTheFirstVersionMeanTheSame(t *testing.T) {
	seen := map[string]bool{}
	for _, file := range []protoreflect.FileDescriptor{File_berth_v1_node_proto, File_berth_v1_control_proto} {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			for j := range s.Methods().Len() {
				method := s.Methods().Get(j)
				for what, d := range map[string]protoreflect.MessageDescriptor{"request": method.Input(), "response": method.Output()} {
					name := string(s.Name()) + "." + string(method.Name()) + "." + what
					seen[name] = true
					golden(t, name, d)
				}
			}
		}
	}
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, f := range files {
		if name := strings.TrimSuffix(filepath.Base(f), ".txt"); !seen[name] {
			t.Errorf("%s: berth no longer has this method, and clients of the first version call it", name)
		}
	}
}

func golden(t *testing.T, name string, d protoreflect.MessageDescriptor) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) && *update {
		m := dynamicpb.NewMessage(d)
		fill(m)
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		have := map[string]string{}
		fields(m, "", have)
		var text strings.Builder
		text.WriteString(hex.EncodeToString(raw) + "\n")
		for _, k := range slices.Sorted(maps.Keys(have)) {
			text.WriteString(k + "=" + have[k] + "\n")
		}
		if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil { // it is read by everybody
			t.Fatal(err)
		}
		return
	}
	if err != nil {
		t.Errorf("%s has no golden file; write it with -update: %v", name, err)
		return
	}
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	raw, err := hex.DecodeString(lines[0])
	if err != nil {
		t.Fatal(err)
	}
	m := dynamicpb.NewMessage(d)
	if err := proto.Unmarshal(raw, m); err != nil {
		t.Errorf("%s: the bytes of the first version cannot be decoded: %v", name, err)
		return
	}
	have := map[string]string{}
	fields(m, "", have)
	for _, line := range lines[1:] {
		k, want, _ := strings.Cut(line, "=")
		if got, ok := have[k]; !ok || got != want {
			t.Errorf("%s: the field %s of the first version was %q, and is now %q in %s", name, strings.TrimPrefix(k, "."), want, got, prototext.Format(m))
		}
	}
}
