// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// document is a message that is written as JSON: each field is there, also a state that is the
// first of its enumeration, numbers are numbers, so that jq can compare them, and instants are RFC
// 3339.
type document struct{ proto.Message }

// shaped returns a list in the shape that all lists have for programs: an object with items.
func shaped(v any) any {
	if r := reflect.ValueOf(v); r.Kind() == reflect.Slice {
		if r.IsNil() {
			r = reflect.MakeSlice(r.Type(), 0, 0)
		}
		return list{r.Interface()}
	}
	return v
}

// items is the answer of a service with the list in the field name, which is called items.
type items struct {
	document
	name string
}

// MarshalJSON implements json.Marshaler.
func (l items) MarshalJSON() ([]byte, error) {
	b, err := l.document.MarshalJSON()
	if err != nil {
		return nil, err
	}
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	all["items"] = all[l.name]
	delete(all, l.name)
	return json.Marshal(all)
}

// documents returns messages that are written as JSON.
func documents[M proto.Message](list []M) []document {
	docs := make([]document, 0, len(list))
	for _, m := range list {
		docs = append(docs, document{m})
	}
	return docs
}

// MarshalJSON implements json.Marshaler. Protojson varies its white space on purpose, so the
// document is written anew.
func (d document) MarshalJSON() ([]byte, error) {
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(d.Message)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(strings.NewReader(string(b)))
	decoder.UseNumber()
	var all map[string]any
	if err := decoder.Decode(&all); err != nil {
		return nil, err
	}
	numbers(d.ProtoReflect().Descriptor(), all)
	return json.Marshal(all)
}

// instants are the fields of CRI that count nanoseconds since 1970.
var instants = []protoreflect.Name{"created_at", "started_at", "finished_at", "timestamp"}

// numbers replaces the texts that ProtoJSON has for numbers of 64 bits, and for instants of CRI. An
// instant that is not there is null.
func numbers(of protoreflect.MessageDescriptor, all map[string]any) {
	for name, v := range all {
		f := of.Fields().ByJSONName(name)
		wide := f.Kind() == protoreflect.Int64Kind || f.Kind() == protoreflect.Uint64Kind
		switch v := v.(type) {
		case string:
			if ns, err := strconv.ParseInt(v, 10, 64); wide && err == nil && slices.Contains(instants, f.Name()) {
				if all[name] = nil; ns != 0 {
					all[name] = instant(ns)
				}
			} else if wide {
				all[name] = json.Number(v)
			}
		case map[string]any:
			if !f.IsMap() {
				numbers(f.Message(), v)
				continue
			}
			for _, value := range v {
				if value, ok := value.(map[string]any); ok {
					numbers(f.MapValue().Message(), value)
				}
			}
		case []any:
			for i, value := range v {
				if value, ok := value.(map[string]any); ok {
					numbers(f.Message(), value)
				} else if number, ok := v[i].(string); ok && wide {
					v[i] = json.Number(number)
				}
			}
		}
	}
}
