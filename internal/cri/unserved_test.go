// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

// PROPERTIES 22: every RPC that cri-api knows is served, or refused by name with a reason. A new
// one does not compile before somebody decides, because nothing is inherited from the generated
// answers.
func TestEveryRPCIsServedOrRefusedWithAReason(t *testing.T) {
	known := map[string]bool{}
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
			known[name] = true
			if _, ok := reflect.PointerTo(of).MethodByName(name); !ok {
				t.Errorf("%s has no %s", of, name)
			}
		}
	}
	c := dialServer(t, &Runtime{}, slog.New(slog.DiscardHandler), &observed{})
	for name, why := range unserved {
		if !known[name] {
			t.Errorf("%s is refused, and is not an RPC of CRI", name)
			continue
		}
		err := c.conn.Invoke(t.Context(), "/"+runtimeapi.RuntimeService_ServiceDesc.ServiceName+"/"+name, &runtimeapi.VersionRequest{}, &runtimeapi.VersionResponse{})
		if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
