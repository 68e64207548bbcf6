// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/internal/host/network"
)

// span runs f in a span of its own below ctx's.
func span(ctx context.Context, t trace.Tracer, name, id string, f func(ctx context.Context) error) error {
	ctx, s := t.Start(ctx, name, trace.WithAttributes(attribute.String("berth.id", id)))
	defer s.End()
	err := f(ctx)
	if err != nil {
		s.RecordError(err)
		s.SetStatus(otelcodes.Error, err.Error())
	}
	return err
}

// tracedRuntime makes a span of each call that makes or removes something.
type tracedRuntime struct {
	pod.Runtime
	tracer trace.Tracer
}

func (r tracedRuntime) PrepareSnapshot(ctx context.Context, l pod.Layer) error {
	return span(ctx, r.tracer, "prepare snapshot", l.Key, func(ctx context.Context) error {
		return r.Runtime.PrepareSnapshot(ctx, l)
	})
}

func (r tracedRuntime) CreateTask(ctx context.Context, q pod.TaskRequest) (pid uint32, err error) {
	err = span(ctx, r.tracer, "create task", q.ID, func(ctx context.Context) error {
		pid, err = r.Runtime.CreateTask(ctx, q)
		return err
	})
	return pid, err
}

func (r tracedRuntime) StartTask(ctx context.Context, id string) error {
	return span(ctx, r.tracer, "start task", id, func(ctx context.Context) error { return r.Runtime.StartTask(ctx, id) })
}

func (r tracedRuntime) StartShim(ctx context.Context, q pod.SandboxRequest) error {
	return span(ctx, r.tracer, "start shim", q.ID, func(ctx context.Context) error { return r.Runtime.StartShim(ctx, q) })
}

func (r tracedRuntime) EndShim(ctx context.Context, id string) error {
	return span(ctx, r.tracer, "end shim", id, func(ctx context.Context) error { return r.Runtime.EndShim(ctx, id) })
}

func (r tracedRuntime) CreateSandbox(ctx context.Context, id string, h pod.Handler) error {
	return span(ctx, r.tracer, "create sandbox object", id, func(ctx context.Context) error { return r.Runtime.CreateSandbox(ctx, id, h) })
}

func (r tracedRuntime) DeleteSandbox(ctx context.Context, id string) error {
	return span(ctx, r.tracer, "delete sandbox object", id, func(ctx context.Context) error { return r.Runtime.DeleteSandbox(ctx, id) })
}

func (r tracedRuntime) CreateContainer(ctx context.Context, o pod.Object) error {
	return span(ctx, r.tracer, "create container object", o.ID, func(ctx context.Context) error { return r.Runtime.CreateContainer(ctx, o) })
}

func (r tracedRuntime) DeleteContainer(ctx context.Context, id string) error {
	return span(ctx, r.tracer, "delete container object", id, func(ctx context.Context) error { return r.Runtime.DeleteContainer(ctx, id) })
}

func (r tracedRuntime) DeleteSnapshot(ctx context.Context, snapshotter, key string) error {
	return span(ctx, r.tracer, "delete snapshot", key, func(ctx context.Context) error {
		return r.Runtime.DeleteSnapshot(ctx, snapshotter, key)
	})
}

func (r tracedRuntime) DeleteTask(ctx context.Context, id string) error {
	return span(ctx, r.tracer, "delete task", id, func(ctx context.Context) error { return r.Runtime.DeleteTask(ctx, id) })
}

// tracedStore makes a span of each commit. It is a trace of its own: one commit may serve several
// operations, and the store does not know which.
type tracedStore struct {
	pod.Store
	tracer trace.Tracer
}

func (s tracedStore) Commit(changes ...state.Change) error {
	id := ""
	if len(changes) > 0 {
		id = changes[0].ID()
	}
	return span(context.Background(), s.tracer, "commit", id, func(context.Context) error { return s.Store.Commit(changes...) })
}

// tracedNetwork makes a span of each run of CNI plug-ins.
type tracedNetwork struct {
	pod.Network
	tracer trace.Tracer
}

func (n tracedNetwork) Setup(ctx context.Context, p network.Pod) (res network.Result, err error) {
	err = span(ctx, n.tracer, "add to network", p.ID, func(ctx context.Context) error {
		res, err = n.Network.Setup(ctx, p)
		return err
	})
	return res, err
}

func (n tracedNetwork) Teardown(ctx context.Context, p network.Pod, recorded network.Result) error {
	return span(ctx, n.tracer, "remove from network", p.ID, func(ctx context.Context) error {
		return n.Network.Teardown(ctx, p, recorded)
	})
}
