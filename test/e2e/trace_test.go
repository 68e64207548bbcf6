// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"berth/test/node"
)

// collect is an OTLP collector.
type collect struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracepb.Span
}

func (c *collect) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range r.GetResourceSpans() {
		for _, ss := range rs.GetScopeSpans() {
			c.spans = append(c.spans, ss.GetSpans()...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// below counts the spans of a name whose trace has a root of a name.
func (c *collect) below(root, name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	roots := map[string]bool{}
	for _, s := range c.spans {
		if len(s.GetParentSpanId()) == 0 && s.GetName() == root {
			roots[string(s.GetTraceId())] = true
		}
	}
	n := 0
	for _, s := range c.spans {
		if s.GetName() == name && roots[string(s.GetTraceId())] {
			n++
		}
	}
	return n
}

// A call and an exit can be followed from beginning to end, with and without a pause process.
func TestTraces(t *testing.T) {
	t.Parallel()
	for pause, made := range map[string]string{"always": "the shim (Create)", "auto": "the shim of the pod, which is started,"} {
		t.Run(pause, func(t *testing.T) {
			t.Parallel()
			traces(t, pause, made)
		})
	}
}

func traces(t *testing.T, pause, made string) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, s := &collect{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(s, c)
	go func() { _ = s.Serve(lis) }()
	t.Cleanup(s.Stop)
	n := node.Start(t, node.Options{Args: []string{"--set", "tracing.endpoint=http://" + lis.Addr().String(), "--set", "pod.pause=" + pause}})
	_, id := n.Sh("exit 3")
	node.ExpectExit(t, n.Ended(id), 3, "Error")
	n.Until("traces of the calls and of the exit", func() bool {
		const run, start = "runtime.v1.RuntimeService/RunPodSandbox", "runtime.v1.RuntimeService/StartContainer"
		return c.below(run, "the network (CNI ADD)") == 1 && c.below(run, made) == 1 && c.below(start, "the shim (Start)") == 1 &&
			c.below("exit", "settle") > 0 && c.below("exit", "attempt") > 0
	})
}
