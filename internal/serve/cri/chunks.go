// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxChunk is how many bytes of items one message of a stream carries at most; an item that is
// larger comes by itself. It is far below the limit of every client, which is 4 MiB by gRPC's
// default.
const maxChunk = 1 << 20

// sendChunks streams a list: each item in exactly one message, in order, and no message without an
// item. message makes a message of some of them.
func sendChunks[M proto.Message, R any](items []M, stream grpc.ServerStreamingServer[R], message func([]M) *R) error {
	first, size := 0, 0
	for i, m := range items {
		n := proto.Size(m)
		if size += n; size > maxChunk && i > first {
			if err := stream.Send(message(items[first:i])); err != nil {
				return err
			}
			first, size = i, n
		}
	}
	if first == len(items) {
		return nil
	}
	return stream.Send(message(items[first:]))
}

// StreamPodSandboxes sends the result of ListPodSandbox as a stream.
func (r *Runtime) StreamPodSandboxes(req *runtimeapi.StreamPodSandboxesRequest, s grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	list, err := r.ListPodSandbox(s.Context(), &runtimeapi.ListPodSandboxRequest{Filter: req.GetFilter()})
	if err != nil {
		return err
	}
	return sendChunks(list.GetItems(), s, func(part []*runtimeapi.PodSandbox) *runtimeapi.StreamPodSandboxesResponse {
		return &runtimeapi.StreamPodSandboxesResponse{PodSandboxes: part}
	})
}

// StreamContainers sends the result of ListContainers as a stream.
func (r *Runtime) StreamContainers(req *runtimeapi.StreamContainersRequest, s grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	list, err := r.ListContainers(s.Context(), &runtimeapi.ListContainersRequest{Filter: req.GetFilter()})
	if err != nil {
		return err
	}
	return sendChunks(list.GetContainers(), s, func(part []*runtimeapi.Container) *runtimeapi.StreamContainersResponse {
		return &runtimeapi.StreamContainersResponse{Containers: part}
	})
}

// StreamContainerStats sends the result of ListContainerStats as a stream.
func (r *Runtime) StreamContainerStats(req *runtimeapi.StreamContainerStatsRequest, s grpc.ServerStreamingServer[runtimeapi.StreamContainerStatsResponse]) error {
	list, err := r.ListContainerStats(s.Context(), &runtimeapi.ListContainerStatsRequest{Filter: req.GetFilter()})
	if err != nil {
		return err
	}
	return sendChunks(list.GetStats(), s, func(part []*runtimeapi.ContainerStats) *runtimeapi.StreamContainerStatsResponse {
		return &runtimeapi.StreamContainerStatsResponse{ContainerStats: part}
	})
}

// StreamPodSandboxStats sends the result of ListPodSandboxStats as a stream.
func (r *Runtime) StreamPodSandboxStats(req *runtimeapi.StreamPodSandboxStatsRequest, s grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxStatsResponse]) error {
	list, err := r.ListPodSandboxStats(s.Context(), &runtimeapi.ListPodSandboxStatsRequest{Filter: req.GetFilter()})
	if err != nil {
		return err
	}
	return sendChunks(list.GetStats(), s, func(part []*runtimeapi.PodSandboxStats) *runtimeapi.StreamPodSandboxStatsResponse {
		return &runtimeapi.StreamPodSandboxStatsResponse{PodSandboxStats: part}
	})
}

// StreamPodSandboxMetrics sends the result of ListPodSandboxMetrics as a stream.
func (r *Runtime) StreamPodSandboxMetrics(_ *runtimeapi.StreamPodSandboxMetricsRequest, s grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxMetricsResponse]) error {
	list, err := r.ListPodSandboxMetrics(s.Context(), &runtimeapi.ListPodSandboxMetricsRequest{})
	if err != nil {
		return err
	}
	return sendChunks(list.GetPodMetrics(), s, func(part []*runtimeapi.PodSandboxMetrics) *runtimeapi.StreamPodSandboxMetricsResponse {
		return &runtimeapi.StreamPodSandboxMetricsResponse{PodSandboxMetrics: part}
	})
}

// StreamImages sends the result of ListImages as a stream.
func (s *Image) StreamImages(req *runtimeapi.StreamImagesRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse]) error {
	list, err := s.ListImages(stream.Context(), &runtimeapi.ListImagesRequest{Filter: req.GetFilter()})
	if err != nil {
		return err
	}
	return sendChunks(list.GetImages(), stream, func(part []*runtimeapi.Image) *runtimeapi.StreamImagesResponse {
		return &runtimeapi.StreamImagesResponse{Images: part}
	})
}
