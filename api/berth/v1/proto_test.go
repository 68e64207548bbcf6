// SPDX-License-Identifier: Apache-2.0

package berthv1

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Clients in other languages are generated from the .proto files, and the daemon has the Go code:
// an edit of one without `make proto` would let them differ. No compiler of protobuf is needed: the
// files use a small part of the language, and a line of another form is an error.
func TestTheGeneratedCodeIsThatOfTheProtoFiles(t *testing.T) {
	for path, file := range map[string]protoreflect.FileDescriptor{
		"node.proto":    File_berth_v1_node_proto,
		"control.proto": File_berth_v1_control_proto,
	} {
		written, generated := parsed(t, path), described(file)
		for _, what := range slices.Sorted(maps.Keys(written)) {
			if !generated[what] {
				t.Errorf("%s has %q, and the Go code does not; run make proto", path, what)
			}
		}
		for _, what := range slices.Sorted(maps.Keys(generated)) {
			if !written[what] {
				t.Errorf("the Go code has %q, and %s does not; run make proto", what, path)
			}
		}
		if len(written) < 10 {
			t.Errorf("only %d declarations are read from %s", len(written), path)
		}
	}
}

var (
	block  = regexp.MustCompile(`^(message|service) (\w+) \{(\})?$`)
	field  = regexp.MustCompile(`^((?:repeated |optional )?[\w.]+|map<\w+, [\w.]+>) (\w+) = (\d+);$`)
	method = regexp.MustCompile(`^rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);$`)
	header = regexp.MustCompile(`^(syntax|package|import|option) .*;$`)
)

// parsed returns the declarations of a .proto file, such as "Exit: int32 code = 1".
func parsed(t *testing.T, path string) map[string]bool {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	in := ""
	for line := range strings.Lines(string(b)) {
		line, _, _ = strings.Cut(line, "//")
		line = strings.TrimSpace(line)
		switch m := block.FindStringSubmatch(line); {
		case line == "" || header.MatchString(line):
		case m != nil && in == "":
			if in = m[2]; m[3] != "" {
				in = ""
			}
			all[m[1]+" "+m[2]] = true
		case line == "}" && in != "":
			in = ""
		case in != "" && (field.MatchString(line) || method.MatchString(line)):
			all[in+": "+strings.TrimSuffix(line, ";")] = true
		default:
			t.Errorf("%s: %q is of a form that this test does not read; teach it", path, line)
		}
	}
	return all
}

// described returns the declarations that the generated code has.
func described(file protoreflect.FileDescriptor) map[string]bool {
	all := map[string]bool{}
	name := func(d protoreflect.FieldDescriptor) string {
		if d.Message() == nil {
			return d.Kind().String()
		}
		return strings.TrimPrefix(string(d.Message().FullName()), string(file.Package())+".")
	}
	for i := range file.Messages().Len() {
		m := file.Messages().Get(i)
		all["message "+string(m.Name())] = true
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			kind := name(f)
			switch {
			case f.IsMap():
				kind = "map<" + name(f.MapKey()) + ", " + name(f.MapValue()) + ">"
			case f.IsList():
				kind = "repeated " + kind
			case f.HasOptionalKeyword():
				kind = "optional " + kind
			}
			all[string(m.Name())+": "+kind+" "+string(f.Name())+" = "+strconv.Itoa(int(f.Number()))] = true
		}
	}
	for i := range file.Services().Len() {
		s := file.Services().Get(i)
		all["service "+string(s.Name())] = true
		for j := range s.Methods().Len() {
			m := s.Methods().Get(j)
			stream := map[bool]string{true: "stream "}
			all[string(s.Name())+": rpc "+string(m.Name())+"("+stream[m.IsStreamingClient()]+string(m.Input().Name())+") returns ("+
				stream[m.IsStreamingServer()]+string(m.Output().Name())+")"] = true
		}
	}
	return all
}
