// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "berth/api/berth/v1"
)

const bad = "a\xffb"

// fill puts text that is not UTF-8 into each string of a message, and makes one of each message within.
func fill(m protoreflect.Message, depth int) (texts int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Message() != nil && depth == 0 {
			continue
		}
		text := f.Kind() == protoreflect.StringKind
		switch {
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v := m.Mutable(f).Map().NewValue()
				texts += fill(v.Message(), depth-1)
				m.Mutable(f).Map().Set(protoreflect.ValueOf("id").MapKey(), v)
			} else if f.MapValue().Kind() == protoreflect.StringKind && f.MapKey().Kind() == protoreflect.StringKind {
				m.Mutable(f).Map().Set(protoreflect.ValueOf("id").MapKey(), protoreflect.ValueOf(bad))
				texts++
			}
		case f.IsList() && f.Message() != nil:
			texts += fill(m.Mutable(f).List().AppendMutable().Message(), depth-1)
		case f.IsList() && text:
			m.Mutable(f).List().Append(protoreflect.ValueOf(bad))
			texts++
		case f.Message() != nil:
			texts += fill(m.Mutable(f).Message(), depth-1)
		case text:
			m.Set(f, protoreflect.ValueOf(bad))
			texts++
		}
	}
	return texts
}

// An error, a path or a line of a log with a byte that is not UTF-8 made a whole answer fail: protobuf
// encodes no such text.
func TestAnAnswerWithAnyBytesIsEncoded(t *testing.T) {
	messages := 0
	protoregistry.GlobalTypes.RangeMessages(func(kind protoreflect.MessageType) bool {
		if kind.Descriptor().ParentFile().Package() != "berth.v1" || kind.Descriptor().IsMapEntry() {
			return true
		}
		m := kind.New()
		if fill(m, 3) == 0 {
			return true
		}
		messages++
		name := kind.Descriptor().Name()
		if _, err := proto.Marshal(m.Interface()); err == nil {
			t.Errorf("%s: the test has no text that is not UTF-8", name)
		}
		makeValid(m)
		b, err := proto.Marshal(m.Interface())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return true
		}
		again := kind.New()
		if err := proto.Unmarshal(b, again.Interface()); err != nil || !proto.Equal(m.Interface(), again.Interface()) {
			t.Errorf("%s: %v, %v", name, err, again)
		}
		return true
	})
	if messages < 20 {
		t.Fatalf("only %d messages of berth.v1 have a text", messages)
	}
}
