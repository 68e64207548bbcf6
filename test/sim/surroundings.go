// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"encoding/json"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/logs"
	"berth/internal/network"
	"berth/internal/pod"
	"berth/internal/state"
)

// plumbing is network.Network's stand-in: namespaces and CNI results of the world.
type plumbing struct {
	w *World
	l *life
}

func (n plumbing) PathFor(id string) string { return "/netns/" + id }
func (n plumbing) Status() error            { return nil }

func (n plumbing) CreateNS(ctx context.Context, path string) error {
	return n.w.do(ctx, n.l, "netns", path, func() error { n.w.netns[path] = true; return nil })
}

func (n plumbing) RemoveNS(ctx context.Context, path string) error {
	return n.w.do(ctx, n.l, "netns-remove", path, func() error { delete(n.w.netns, path); return nil })
}

func (n plumbing) Setup(ctx context.Context, p network.Pod) (network.Result, error) {
	err := n.w.do(ctx, n.l, "cni-add", p.ID, func() error { n.w.cni[p.ID] = true; return nil })
	if err != nil {
		return network.Result{}, err
	}
	return network.Result{IPs: []string{"10.0.0.2"}, Raw: json.RawMessage(`{}`), Conf: json.RawMessage(`{}`)}, nil
}

func (n plumbing) Teardown(ctx context.Context, p network.Pod, _ network.Result) error {
	return n.w.do(ctx, n.l, "cni-del", p.ID, func() error { delete(n.w.cni, p.ID); return nil })
}

func (n plumbing) Pinned(ctx context.Context) (ids []string, err error) {
	err = n.w.read(ctx, n.l, "netns-list", "", func() error {
		for p := range n.w.netns {
			ids = append(ids, strings.TrimPrefix(p, "/netns/"))
		}
		return nil
	})
	return ids, err
}

// disk puts the world's faults before a real database.
type disk struct {
	w     *World
	l     *life
	store *state.Store
}

func (d disk) Commit(changes ...state.Change) error {
	id := ""
	if len(changes) > 0 {
		id = changes[0].ID()
	}
	return d.w.do(context.Background(), d.l, "commit", id, func() error {
		if d.w.full {
			return errFull
		}
		return d.store.Commit(changes...)
	})
}

// output is a container's stdio, of which nothing is held open.
type output struct {
	closed chan struct{}
	once   sync.Once
}

type outputs struct{}

func (outputs) Create(logs.Options) (pod.Stdio, error) {
	return &output{closed: make(chan struct{})}, nil
}
func (o outputs) Open(l logs.Options) (pod.Stdio, error) { return o.Create(l) }

func (o *output) FIFOs() (stdin, stdout, stderr string) { return "", "out", "err" }
func (o *output) Started() error                        { return nil }
func (o *output) Drained() <-chan struct{}              { c := make(chan struct{}); close(c); return c }
func (o *output) Flush(context.Context) error           { return nil }
func (o *output) Drain(context.Context) error           { return nil }
func (o *output) Reopen(context.Context) error          { return nil }
func (o *output) Close() error                          { o.once.Do(func() { close(o.closed) }); return nil }
func (o *output) Remove() error                         { return o.Close() }
func (o *output) Run(ctx context.Context) error {
	select {
	case <-o.closed:
	case <-ctx.Done():
	}
	return nil
}

// store of images: there is one.
type library struct{}

const image = "registry.example/app:1"

func (library) Resolve(ref string) (pod.Image, error) {
	if ref != image {
		return pod.Image{}, errdefs.ErrNotFound
	}
	return pod.Image{ID: "sha256:1", Ref: ref, ChainID: "sha256:2", Snapshotter: snapshotter, Config: ocispec.ImageConfig{Cmd: []string{"/app"}}}, nil
}

func (library) Files(context.Context, pod.Image) (passwd, group []byte, err error) {
	return nil, nil, nil
}
func (library) CopyOut(context.Context, pod.Image, string, string) error { return nil }
