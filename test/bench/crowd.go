// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that undecoded encodes requests with
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/network"
	"berth/internal/host/pins"
)

// crowd makes s.Crowd containers and measures a list of them. Then it starts s.Running of them and
// measures a list of their statistics.
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
	if _, err := n.startAll(ctx, ids); err != nil {
		return err
	}
	time.Sleep(quiet)
	return n.stats(ctx, s.Stats, s.Running, rec)
}

// rawLists measures ListContainers with a client that does not decode the answer.
func (n *node) rawLists(ctx context.Context, count, want int, rec record) error {
	const largest = 32 << 20 // the limit of cri.Dial
	conn, err := grpc.NewClient("unix://"+n.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest), grpc.ForceCodecV2(undecoded{encoding.GetCodecV2("proto")})))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", n.socket, err)
	}
	defer conn.Close()
	for range count {
		var answer received
		if err := n.timed(rec, listName(want)+"/undecoded", func() error {
			return conn.Invoke(ctx, runtimeapi.RuntimeService_ListContainers_FullMethodName, &runtimeapi.ListContainersRequest{}, &answer)
		}); err != nil {
			return err
		}
		if got, err := answer.items(); got != want || err != nil {
			return fmt.Errorf("list containers: %d, want %d: %w", got, want, err)
		}
	}
	return nil
}

// stats measures ListContainerStats without a filter, as the kubelet calls it.
func (n *node) stats(ctx context.Context, count, want int, rec record) error {
	for range count {
		var resp *runtimeapi.ListContainerStatsResponse
		if err := n.timed(rec, fmt.Sprintf("ListContainerStats/running=%d", want), func() (err error) {
			resp, err = n.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
			return err
		}); err != nil {
			return err
		}
		got := 0
		for _, st := range resp.GetStats() {
			if st.GetMemory().GetWorkingSetBytes().GetValue() > 0 {
				got++
			}
		}
		if got < want { // CRI-O has figures of those too that were never started
			return fmt.Errorf("list statistics of containers: %d of %d have memory, want %d", got, len(resp.GetStats()), want)
		}
	}
	return nil
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

// Name implements encoding.CodecV2: the requests' content type is application/grpc, as without this
// codec. CRI-O takes no other.
func (undecoded) Name() string { return "" }

// Unmarshal implements encoding.CodecV2.
func (undecoded) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*received) = data.Materialize()
	return nil
}

// plugins measures how long CNI's plug-ins by themselves take to connect a pod, and to disconnect
// it after a pause.
func (n *node) plugins(ctx context.Context, count int, rec record) error {
	cni, err := network.New(network.Config{
		ConfDir:  n.dir + "/net.d",
		BinDirs:  []string{n.build + "/cni"},
		CacheDir: n.dir + "/cni-alone",
		Logger:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	netns, err := pins.NewNetworks(n.dir+"/netns-alone", "bench")
	if err != nil {
		return err
	}
	for i := range count {
		time.Sleep(idlePause)
		id := fmt.Sprintf("alone%d", i)
		p := network.Pod{
			ID:        id,
			Name:      id,
			Namespace: "bench",
			UID:       id,
			NetNS:     netns.PathFor(id),
		}
		if err := netns.Create(ctx, p.NetNS); err != nil {
			return err
		}
		var got network.Result
		err := rec.time("CNIAlone", func() (err error) { got, err = cni.Setup(ctx, p); return err })
		if err == nil {
			time.Sleep(idlePause)
			err = rec.time("CNIAloneStop", func() error { return cni.Teardown(ctx, p, got) })
		}
		if err := errors.Join(err, netns.Remove(ctx, p.NetNS)); err != nil {
			return fmt.Errorf("connect a pod: %w", err)
		}
	}
	return nil
}
