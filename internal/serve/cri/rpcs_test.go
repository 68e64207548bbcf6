// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PROPERTIES 22: every RPC that cri-api knows is served. A new one does not compile before somebody
// decides about it, because nothing is inherited from the generated answers.
func TestEveryRPCIsServed(t *testing.T) {
	for _, of := range []reflect.Type{reflect.TypeFor[Runtime](), reflect.TypeFor[Image]()} {
		for i := range of.NumField() {
			if name := of.Field(i).Type.Name(); strings.HasPrefix(name, "Unimplemented") {
				t.Errorf("%s embeds %s: an RPC that nobody wrote would be refused without a reason", of, name)
			}
		}
	}
}

// What RunPodSandbox and CreateContainer refuse, the restore of a pod refuses, too.
func TestARestoreOfAPodIsCheckedLikeItsParts(t *testing.T) {
	for _, edit := range []func(*runtimeapi.RestorePodRequest){
		func(r *runtimeapi.RestorePodRequest) { r.Config = nil },
		func(r *runtimeapi.RestorePodRequest) { r.Config.Metadata = nil },
		func(r *runtimeapi.RestorePodRequest) { r.Config.Metadata.Name = "../x" },
		func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[0].Metadata.Name = "a/b" },
		func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[0].Metadata = nil },
		func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[0].Image = nil },
		func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[0] = nil },
	} {
		req := &runtimeapi.RestorePodRequest{
			CheckpointPath: "/x",
			Config:         &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p"}},
			ContainerConfigs: []*runtimeapi.ContainerConfig{
				{Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: "i"}},
			},
		}
		edit(req)
		if _, err := (&Runtime{}).RestorePod(t.Context(), req); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "restore pod") {
			t.Errorf("%v: %v", req, err)
		}
	}
}
