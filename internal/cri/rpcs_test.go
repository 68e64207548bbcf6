// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// rpcs are the methods of a service of cri-api, and whether each is a stream.
func rpcs(d grpc.ServiceDesc) map[string]bool {
	all := map[string]bool{}
	for _, m := range d.Methods {
		all[m.MethodName] = false
	}
	for _, s := range d.Streams {
		all[s.StreamName] = true
	}
	return all
}

// PROPERTIES 22: every RPC that cri-api knows is served. A new one does not compile before somebody
// decides about it, because nothing is inherited from the generated answers.
func TestEveryRPCIsServed(t *testing.T) {
	for _, service := range []struct {
		desc   grpc.ServiceDesc
		server any
	}{
		{runtimeapi.RuntimeService_ServiceDesc, Runtime{}},
		{runtimeapi.ImageService_ServiceDesc, Image{}},
	} {
		of := reflect.TypeOf(service.server)
		for i := range of.NumField() {
			if name := of.Field(i).Type.Name(); strings.HasPrefix(name, "Unimplemented") {
				t.Errorf("%s embeds %s: an RPC that nobody wrote would be refused without a reason", of, name)
			}
		}
		for name := range rpcs(service.desc) {
			if _, ok := reflect.PointerTo(of).MethodByName(name); !ok {
				t.Errorf("%s has no %s", of, name)
			}
		}
	}
}
