// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
)

// listed is a controller that lists n containers as a kubelet makes them.
type listed struct {
	Pods
	list []*runtimeapi.Container
}

func newListed(n int) *listed {
	l := &listed{}
	for i := range n {
		l.list = append(l.list, &runtimeapi.Container{
			Id:           fmt.Sprintf("%064x", i),
			PodSandboxId: fmt.Sprintf("%064x", i/3+1<<20),
			Metadata:     &runtimeapi.ContainerMetadata{Name: fmt.Sprint("container-", i%3)},
			Image:        &runtimeapi.ImageSpec{Image: "sha256:" + fmt.Sprintf("%064x", i%10), UserSpecifiedImage: "registry.example.org/team/service:v1.2.3"},
			ImageRef:     "sha256:" + fmt.Sprintf("%064x", i%10),
			ImageId:      "sha256:" + fmt.Sprintf("%064x", i%10),
			State:        runtimeapi.ContainerState_CONTAINER_RUNNING,
			CreatedAt:    1763731234567890123,
			Labels: map[string]string{
				"io.kubernetes.container.name": fmt.Sprint("container-", i%3),
				"io.kubernetes.pod.name":       fmt.Sprintf("service-%d-7f9c6d5b8-x2x9q", i/3),
				"io.kubernetes.pod.namespace":  "production",
				"io.kubernetes.pod.uid":        fmt.Sprintf("5f1f4c7e-0000-4000-8000-%012d", i/3),
			},
			Annotations: map[string]string{
				"io.kubernetes.container.hash":                     "8a1b2c3d",
				"io.kubernetes.container.ports":                    `[{"name":"http","containerPort":8080,"protocol":"TCP"}]`,
				"io.kubernetes.container.restartCount":             "0",
				"io.kubernetes.container.terminationMessagePath":   "/dev/termination-log",
				"io.kubernetes.container.terminationMessagePolicy": "File",
				"io.kubernetes.pod.terminationGracePeriod":         "30",
			},
		})
	}
	return l
}

func (l *listed) ListContainers(*runtimeapi.ContainerFilter) []*runtimeapi.Container { return l.list }

// raw is a codec that decodes nothing, so that a benchmark measures the server alone.
type raw struct{ encoding.CodecV2 }

func (r raw) Unmarshal(data mem.BufferSlice, v any) error {
	if b, ok := v.(*int); ok {
		*b = data.Len()
		return nil
	}
	return r.CodecV2.Unmarshal(data, v)
}

const containers = 1500

func BenchmarkListContainers(b *testing.B) {
	path := filepath.Join(b.TempDir(), "s")
	serveOn(b, path, &Runtime{Pods: newListed(containers)}, slog.New(slog.DiscardHandler), &observed{})
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(client.MaxMessage)))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	c := runtimeapi.NewRuntimeServiceClient(conn)
	b.Run("decoded", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.ListContainers(b.Context(), &runtimeapi.ListContainersRequest{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("server", func(b *testing.B) {
		b.ReportAllocs()
		codec := raw{encoding.GetCodecV2("proto")}
		for b.Loop() {
			var n int
			if err := conn.Invoke(context.Background(), runtimeapi.RuntimeService_ListContainers_FullMethodName, &runtimeapi.ListContainersRequest{}, &n, grpc.ForceCodecV2(codec)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkMarshal(b *testing.B) {
	resp := &runtimeapi.ListContainersResponse{Containers: newListed(containers).list}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := proto.Marshal(resp); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUnmarshal(b *testing.B) {
	m, _ := proto.Marshal(&runtimeapi.ListContainersResponse{Containers: newListed(containers).list})
	b.SetBytes(int64(len(m)))
	b.ReportAllocs()
	for b.Loop() {
		if err := proto.Unmarshal(m, &runtimeapi.ListContainersResponse{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCodec(b *testing.B) {
	resp := &runtimeapi.ListContainersResponse{Containers: newListed(containers).list}
	c := newCodec()
	b.ReportAllocs()
	for b.Loop() {
		data, err := c.Marshal(resp)
		if err != nil {
			b.Fatal(err)
		}
		data.Free()
	}
}
