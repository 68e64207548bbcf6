// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	berthv1 "berth/api/berth/v1"
)

// RegisterNode registers berth.v1.Node, which only reads, with a server.
func RegisterNode(s grpc.ServiceRegistrar, n berthv1.NodeServer) {
	register(s, berthv1.Node_ServiceDesc, n)
}

// RegisterControl registers berth.v1.Control with a server.
func RegisterControl(s grpc.ServiceRegistrar, c berthv1.ControlServer) {
	register(s, berthv1.Control_ServiceDesc, c)
}

// register registers a service, each answer of which is made encodable. Errors, paths and the output
// of containers reach answers, and any byte may be in them; the encoder refuses a string that is not
// UTF-8, and the client would have an error in place of the answer.
func register(s grpc.ServiceRegistrar, desc grpc.ServiceDesc, service any) {
	desc.Methods = slices.Clone(desc.Methods)
	for i, m := range desc.Methods {
		desc.Methods[i].Handler = func(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			answer, err := m.Handler(srv, ctx, decode, intercept)
			if m, ok := answer.(proto.Message); ok && err == nil {
				makeValid(m.ProtoReflect())
			}
			return answer, err
		}
	}
	s.RegisterService(&desc, service)
}

// makeValid replaces what is not UTF-8 in the strings of a message and of the messages within. The
// keys of maps are IDs, which berth makes.
func makeValid(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch message := f.Message() != nil; {
		case f.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				makeValid(v.Message())
				return true
			})
		case f.IsList():
			for list, i := v.List(), 0; i < list.Len(); i++ {
				if message {
					makeValid(list.Get(i).Message())
				} else if text, changed := validText(list.Get(i)); changed {
					list.Set(i, text)
				}
			}
		case message:
			makeValid(v.Message())
		default:
			if text, changed := validText(v); changed {
				m.Set(f, text)
			}
		}
		return true
	})
}

func validText(v protoreflect.Value) (_ protoreflect.Value, changed bool) {
	s, ok := v.Interface().(string)
	if !ok || utf8.ValidString(s) {
		return v, false
	}
	return protoreflect.ValueOfString(strings.ToValidUTF8(s, "\uFFFD")), true
}
