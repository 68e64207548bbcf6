// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A node with more containers than fit into one message of gRPC's usual size lists them all as a
// stream: each once, in order, in messages of a bounded size, with the same filter.
func TestAStreamHasTheItemsOfTheList(t *testing.T) {
	pods := newListed(20000)
	c := dialServer(t, &Runtime{Pods: pods}, slog.New(slog.DiscardHandler), &observed{})
	all, err := c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.StreamContainers(t.Context(), &runtimeapi.StreamContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	got := &runtimeapi.ListContainersResponse{}
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if n := proto.Size(m); n > maxChunk*5/4 || len(m.GetContainers()) == 0 {
			t.Fatalf("a message has %d items in %d bytes", len(m.GetContainers()), n)
		}
		got.Containers = append(got.Containers, m.GetContainers()...)
	}
	if !proto.Equal(got, all) || len(got.GetContainers()) != 20000 {
		t.Errorf("the stream has %d items, the list %d", len(got.GetContainers()), len(all.GetContainers()))
	}
}

// sent collects what is streamed.
type sent struct {
	grpc.ServerStream
	parts []int
	fail  error
}

func (s *sent) Send(m *runtimeapi.StreamImagesResponse) error {
	s.parts = append(s.parts, len(m.GetImages()))
	return s.fail
}

func TestChunks(t *testing.T) {
	image := func(bytes int) *runtimeapi.Image { return &runtimeapi.Image{Id: string(make([]byte, bytes))} }
	message := func(part []*runtimeapi.Image) *runtimeapi.StreamImagesResponse {
		return &runtimeapi.StreamImagesResponse{Images: part}
	}
	for _, tt := range []struct {
		name  string
		items []*runtimeapi.Image
		want  []int
	}{
		{"none", nil, nil},
		{"small", []*runtimeapi.Image{image(1), image(1)}, []int{2}},
		{"halves", []*runtimeapi.Image{image(maxChunk / 2), image(maxChunk / 2), image(maxChunk / 2)}, []int{1, 1, 1}},
		{"thirds", []*runtimeapi.Image{image(maxChunk / 3), image(maxChunk / 3), image(maxChunk / 3), image(1)}, []int{2, 2}},
		{"a large one comes by itself", []*runtimeapi.Image{image(1), image(2 * maxChunk), image(1)}, []int{1, 1, 1}},
	} {
		s := &sent{}
		if err := sendChunks(tt.items, s, message); err != nil || !slices.Equal(s.parts, tt.want) {
			t.Errorf("%s: the messages have %v items, want %v (%v)", tt.name, s.parts, tt.want, err)
		}
	}
	if err := sendChunks([]*runtimeapi.Image{image(1)}, &sent{fail: io.ErrClosedPipe}, message); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a client that is gone: %v", err)
	}
}

// failing has nothing to list.
type failing struct{ Stats }

func (failing) ListContainerStats(context.Context, *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	return nil, invalid("list container stats: the filter is not one")
}

func TestAStreamFailsAsTheListDoes(t *testing.T) {
	c := dialServer(t, &Runtime{Stats: failing{}}, slog.New(slog.DiscardHandler), &observed{})
	s, err := c.StreamContainerStats(t.Context(), &runtimeapi.StreamContainerStatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}
