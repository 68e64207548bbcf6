// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that undecoded encodes requests with
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// crowd makes as many containers as s.Crowd says and measures a list of them. Then it starts
// s.Running of them and measures a list of their statistics.
func (n *node) crowd(ctx context.Context, s sizes, rec record) error {
	created, err := n.fill(ctx, s.Pods, s.Crowd/s.Pods)
	if err != nil {
		return err
	}
	time.Sleep(quiet)
	if err := n.rawLists(ctx, s.Lists, s.Crowd, rec); err != nil {
		return err
	}
	var ids []string
	for _, list := range created {
		ids = append(ids, list[:s.Running/s.Pods]...)
	}
	if err := parallel(4, ids, func(id string) error { return n.startContainer(ctx, id) }); err != nil {
		return err
	}
	time.Sleep(quiet)
	return n.stats(ctx, s.Stats, s.Running, rec)
}

// rawLists measures ListContainers with a client that does not decode the answer.
func (n *node) rawLists(ctx context.Context, count, want int, rec record) error {
	const largest = 32 << 20 // what cri.Dial allows
	conn, err := grpc.NewClient("unix://"+n.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest), grpc.ForceCodecV2(undecoded{encoding.GetCodecV2("proto")})))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", n.socket, err)
	}
	defer conn.Close()
	for range count {
		var answer received
		took, used, err := n.timed(func() error {
			return conn.Invoke(ctx, runtimeapi.RuntimeService_ListContainers_FullMethodName, &runtimeapi.ListContainersRequest{}, &answer)
		})
		if err != nil {
			return fmt.Errorf("list containers: %w", err)
		}
		rec(listCrowd, ms(took))
		rec(listCrowd+cpu, ms(used))
		switch got, err := answer.items(); {
		case err != nil:
			return fmt.Errorf("list containers: %w", err)
		case got != want:
			return fmt.Errorf("list containers: %d, want %d", got, want)
		}
	}
	return nil
}

// stats measures ListContainerStats without a filter, as the kubelet calls it.
func (n *node) stats(ctx context.Context, count, want int, rec record) error {
	for range count {
		var resp *runtimeapi.ListContainerStatsResponse
		took, used, err := n.timed(func() (err error) {
			resp, err = n.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
			return err
		})
		if err != nil {
			return fmt.Errorf("list statistics of containers: %w", err)
		}
		rec(listStats, ms(took))
		rec(listStats+cpu, ms(used))
		got := 0
		for _, st := range resp.GetStats() {
			if st.GetMemory().GetWorkingSetBytes().GetValue() > 0 {
				got++
			}
		}
		if got != want {
			return fmt.Errorf("list statistics of containers: %d of %d have memory, want %d", got, len(resp.GetStats()), want)
		}
	}
	return nil
}

// timed carries out a call, and returns how long it took and how much processor time the daemon
// used meanwhile.
func (n *node) timed(call func() error) (took, used time.Duration, err error) {
	before, err := processorTime(n.cmd.Process.Pid)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := call(); err != nil {
		return 0, 0, err
	}
	took = time.Since(began)
	after, err := processorTime(n.cmd.Process.Pid)
	return took, after - before, err
}

// processorTime is what all threads of a process have used: clock_getcpuclockid(3).
func processorTime(pid int) (time.Duration, error) {
	const sched = 2 // CPUCLOCK_SCHED: nanoseconds, as the scheduler counts them
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|sched, &t); err != nil { //nolint:gosec // PIDs have 22 bits
		return 0, fmt.Errorf("read processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// received is an answer in wire format.
type received []byte

// items counts the elements of a list: field 1, in every answer of CRI that is a list.
func (r received) items() (k int, err error) {
	for len(r) > 0 {
		field, _, size := protowire.ConsumeField(r)
		if size < 0 {
			return k, fmt.Errorf("read the answer: %w", protowire.ParseError(size))
		}
		if field == 1 {
			k++
		}
		r = r[size:]
	}
	return k, nil
}

// undecoded is gRPC's codec for protocol buffers, except that it leaves answers as they are.
type undecoded struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (undecoded) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*received) = data.Materialize()
	return nil
}
