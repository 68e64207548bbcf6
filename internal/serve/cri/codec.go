// SPDX-License-Identifier: Apache-2.0

// This file holds a trick whole: the items of lists are encoded once. It relies on behaviour that
// gRPC does not promise: it calls no other method of the codec, and sends the result as it is. The
// setting tricks.encode_once turns it off. Delete when the kubelet follows events and lists seldom:
// https://github.com/kubernetes/enhancements/issues/3386.

package cri

import (
	"sync"
	"time"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that this one falls back to
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// codec is gRPC's codec for protocol buffers, except that it does not encode the items of lists
// again and again. A kubelet lists all containers and sandboxes every second, and nearly all of
// them are unchanged.
//
// It relies on a promise of [Pods]: an item of a list is never changed, and as long as a container
// or sandbox has not changed, lists contain the same message, at the same address.
type codec struct {
	encoding.CodecV2
	containers wires[*runtimeapi.Container]
	sandboxes  wires[*runtimeapi.PodSandbox]
}

func newCodec() *codec { return &codec{CodecV2: encoding.GetCodecV2("proto")} }

// Marshal implements encoding.CodecV2.
func (c *codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *runtimeapi.ListContainersResponse:
		return c.containers.list(m.GetContainers())
	case *runtimeapi.ListPodSandboxResponse:
		return c.sandboxes.list(m.GetItems())
	}
	return c.CodecV2.Marshal(v)
}

// itemField is the number of the field that holds the items, in both responses. They have no other
// field.
const itemField = 1

// wires are list items in wire format, by message. Items that were not listed for a while are
// forgotten.
type wires[M interface {
	comparable
	proto.Message
}] struct {
	mu sync.Mutex
	// recent holds the items listed since began. It becomes old after a while, and replaces the old
	// one, which by then holds only items that were not listed since.
	recent, old map[M][]byte
	began       time.Time
	largest     int // items of the largest list since began
}

const (
	// generation is how long recent is filled.
	generation = time.Minute
	// slack is how many more messages recent may hold than twice the length of the largest list.
	slack = 64
)

// list returns a response with these items.
func (w *wires[M]) list(items []M) (mem.BufferSlice, error) {
	parts, size, err := w.parts(items)
	if err != nil {
		return nil, err
	}
	pool := mem.DefaultBufferPool()
	buf := pool.Get(size)
	at := 0
	for _, p := range parts {
		at += copy((*buf)[at:], p)
	}
	return mem.BufferSlice{mem.NewBuffer(buf, pool)}, nil
}

func (w *wires[M]) parts(items []M) (parts [][]byte, size int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.largest = max(w.largest, len(items))
	if now := time.Now(); now.Sub(w.began) > generation || len(w.recent) > 2*w.largest+slack {
		w.recent, w.old = make(map[M][]byte, len(items)), w.recent
		w.began, w.largest = now, len(items)
	}
	parts = make([][]byte, len(items))
	for i, m := range items {
		if parts[i], err = w.wire(m); err != nil {
			return nil, 0, err
		}
		size += len(parts[i])
	}
	return parts, size, nil
}

// wire returns an item with its field's tag and length. The caller holds the lock.
func (w *wires[M]) wire(m M) ([]byte, error) {
	if b, ok := w.recent[m]; ok {
		return b, nil
	}
	b, ok := w.old[m]
	if !ok {
		size := proto.Size(m)
		b = make([]byte, 0, protowire.SizeTag(itemField)+protowire.SizeBytes(size))
		b = protowire.AppendTag(b, itemField, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(size))
		var err error
		if b, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(b, m); err != nil {
			return nil, err
		}
	}
	w.recent[m] = b
	return b, nil
}
