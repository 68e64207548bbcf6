// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"encoding/json"
	"io"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	berthv1 "berth/api/berth/v1"
)

// settingsOf returns the settings that are written: each text has to be one of berth's words, or a
// duration.
func settingsOf(s *berthv1.Settings) *berthv1.Settings {
	c := &berthv1.Settings{}
	proto.Merge(c, s)
	useTerms(c.ProtoReflect())
	return c
}

func useTerms(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				useTerms(v.List().Get(i).Message())
			}
		case f.IsList() || f.IsMap() || f.Message() != nil || f.Kind() == protoreflect.BytesKind: // none of today's
			m.Clear(f)
		case f.Kind() == protoreflect.StringKind:
			if _, err := time.ParseDuration(v.String()); err != nil {
				m.Set(f, protoreflect.ValueOfString(term(v.String())))
			}
		}
		return true
	})
}

// writeSettings writes settings as JSON. The form of protojson's white space is random, so it is
// made anew.
func writeSettings(w io.Writer, s *berthv1.Settings) error {
	b, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(s)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return err
	}
	_, err = out.WriteTo(w)
	return err
}

// readSettings reads settings, also those of an earlier berth, which named some otherwise.
func readSettings(r io.Reader) (*berthv1.Settings, error) {
	s := &berthv1.Settings{}
	b, err := io.ReadAll(r)
	if err != nil {
		return s, err
	}
	return s, protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, s)
}
