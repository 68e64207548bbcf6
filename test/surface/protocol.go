// SPDX-License-Identifier: Apache-2.0

package surface

import (
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/cri138"
)

// protocol describes CRI with what Kubernetes 1.38 adds to it, as its own cri-api does.
var protocol = sync.OnceValue(func() protoreflect.FileDescriptor {
	all := protodesc.ToFileDescriptorProto(runtimeapi.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto)
	added := protodesc.ToFileDescriptorProto(cri138.File_cri138_proto)
	within := func(name *string) {
		if name != nil {
			*name = strings.Replace(*name, ".berth.cri138.", ".runtime.v1.", 1)
		}
	}
	for _, m := range added.GetMessageType() {
		for _, f := range m.GetField() {
			within(f.TypeName)
		}
		i := slices.IndexFunc(all.MessageType, func(old *descriptorpb.DescriptorProto) bool { return old.GetName() == m.GetName() })
		if i < 0 {
			all.MessageType = append(all.MessageType, m)
			continue
		}
		all.MessageType[i].Field = append(all.MessageType[i].Field, m.GetField()...)
	}
	all.EnumType = append(all.EnumType, added.GetEnumType()...)
	for _, s := range added.GetService() {
		for _, m := range s.GetMethod() {
			within(m.InputType)
			within(m.OutputType)
		}
		i := slices.IndexFunc(all.Service, func(old *descriptorpb.ServiceDescriptorProto) bool { return old.GetName() == s.GetName() })
		all.Service[i].Method = append(all.Service[i].Method, s.GetMethod()...)
	}
	file, err := protodesc.NewFile(all, protoregistry.GlobalFiles)
	if err != nil {
		panic(err)
	}
	return file
})

// with sets fields that are new in Kubernetes 1.38, and returns the message that has them.
func with[M proto.Message](m M, fields proto.Message) M {
	cri138.Set(m, fields)
	return m
}
