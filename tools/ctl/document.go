// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"encoding/json"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	berthv1 "berth/api/berth/v1"
)

// document is a message that is written as JSON. Messages of CRI are written as ProtoJSON has them.
// Messages of berth.v1 have every field, and their numbers are numbers, so that jq can compare them.
type document struct{ proto.Message }

// documents returns messages that are written as JSON.
func documents[M proto.Message](list []M) []document {
	docs := make([]document, 0, len(list))
	for _, m := range list {
		docs = append(docs, document{m})
	}
	return docs
}

// MarshalJSON implements json.Marshaler. Protojson varies its white space on purpose, so the document
// is written anew.
func (d document) MarshalJSON() ([]byte, error) {
	of := d.ProtoReflect().Descriptor()
	ours := of.ParentFile().Package() == berthv1.File_berth_v1_node_proto.Package()
	b, err := protojson.MarshalOptions{EmitDefaultValues: ours}.Marshal(d.Message)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(strings.NewReader(string(b)))
	decoder.UseNumber()
	var all map[string]any
	if err := decoder.Decode(&all); err != nil {
		return nil, err
	}
	if ours {
		numbers(of, all)
	}
	return json.Marshal(all)
}

// numbers replaces the texts that ProtoJSON has for numbers of 64 bits. The size of an image stays a
// text, as it is in the list of CRI.
func numbers(of protoreflect.MessageDescriptor, all map[string]any) {
	for name, v := range all {
		f := of.Fields().ByJSONName(name)
		switch v := v.(type) {
		case string:
			if (f.Kind() == protoreflect.Int64Kind || f.Kind() == protoreflect.Uint64Kind) && f.FullName() != "berth.v1.Image.size" {
				all[name] = json.Number(v)
			}
		case map[string]any:
			if f.IsMap() {
				for _, value := range v {
					if value, ok := value.(map[string]any); ok {
						numbers(f.MapValue().Message(), value)
					}
				}
			} else {
				numbers(f.Message(), v)
			}
		case []any:
			for _, value := range v {
				if value, ok := value.(map[string]any); ok {
					numbers(f.Message(), value)
				}
			}
		}
	}
}
