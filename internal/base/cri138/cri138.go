// SPDX-License-Identifier: Apache-2.0

package cri138

import (
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SecurityProfile_OCI is the type of a profile from a registry.
const SecurityProfile_OCI runtimeapi.SecurityProfile_ProfileType = 3

// Of returns the new fields of a message of CRI as a message of this package with the same name.
// The result is empty if m has none of them, and for nil. The error is that of unknown fields that
// are not in wire format, which none can be that came through gRPC.
func Of[N any, P interface {
	*N
	proto.Message
}](m proto.Message) (P, error) {
	out := P(new(N))
	return out, proto.Unmarshal(m.ProtoReflect().GetUnknown(), out)
}

// Set sets the new fields of a message of CRI, which has to have none of them.
func Set(m, fields proto.Message) {
	b, err := proto.Marshal(fields)
	if err != nil {
		panic(err) // the messages of this package can be encoded
	}
	r := m.ProtoReflect()
	r.SetUnknown(append(r.GetUnknown(), b...))
}
