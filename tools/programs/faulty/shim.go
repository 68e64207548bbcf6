// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// The shim's own task plug-in, with another publisher, and an interceptor before its service.
func init() {
	registry.Register(&plugin.Registration{
		Type: plugins.TTRPCPlugin, ID: "task", Requires: []plugin.Type{plugins.EventPlugin, plugins.InternalPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			pp, err := ic.GetByID(plugins.EventPlugin, "publisher")
			if err != nil {
				return nil, err
			}
			ss, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
			if err != nil {
				return nil, err
			}
			return task.NewTaskService(ic.Context, publisher{pp.(shim.Publisher)}, ss.(shutdown.Service))
		},
	})
	registry.Register(&plugin.Registration{
		Type: plugins.TTRPCPlugin, ID: "faulty",
		InitFn: func(*plugin.InitContext) (any, error) { return interceptor{}, nil },
	})
}

// step runs f, which is a step of id, under the rule for that step.
func step(name, id string, f func() error) error {
	r, ok := find("shim."+name, id)
	if !ok {
		return f()
	}
	if err := r.before(); err != nil {
		if errors.Is(err, errSwallowed) {
			return nil
		}
		return err
	}
	err := f()
	if aerr := r.after(); aerr != nil {
		return aerr
	}
	return err
}

type publisher struct{ shim.Publisher }

// Publish passes an event on to containerd.
func (p publisher) Publish(ctx context.Context, topic string, event events.Event) error {
	id := ""
	if e, ok := event.(interface{ GetContainerID() string }); ok {
		id = e.GetContainerID()
	}
	return step(filepath.Base(topic)+"-event", id, func() error { return p.Publisher.Publish(ctx, topic, event) })
}

type interceptor struct{}

// UnaryServerInterceptor stands before each method of the task service. An answer cannot be
// swallowed.
func (interceptor) UnaryServerInterceptor() ttrpc.UnaryServerInterceptor {
	return func(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
		if sandboxed.Load() && strings.HasSuffix(info.FullMethod, ".Task/Shutdown") {
			return &emptypb.Empty{}, nil // its last container is gone, and the sandbox is not
		}
		var r rule
		var ok bool
		resp, err := method(ctx, func(req any) error {
			if err := unmarshal(req); err != nil {
				return err
			}
			if e, isExec := req.(interface{ GetExecID() string }); isExec && e.GetExecID() != "" {
				return nil
			}
			i, named := req.(interface{ GetID() string })
			if !named {
				return nil
			}
			if r, ok = find("shim."+filepath.Base(info.FullMethod), i.GetID()); ok {
				return r.before()
			}
			return nil
		})
		if ok && err == nil {
			if aerr := r.after(); aerr != nil {
				return nil, aerr
			}
		}
		return resp, err
	}
}

type faultyManager struct{ shim.Shim }

func newManager() shim.Shim { return faultyManager{manager.NewShimManager("io.containerd.runc.v2")} }

// Info is the information of tools/programs/shim.
func (m faultyManager) Info(ctx context.Context, options io.Reader) (*types.RuntimeInfo, error) {
	info, err := m.Shim.Info(ctx, options)
	if err == nil {
		info.Annotations = map[string]string{"io.berth.shim.sandbox": "true"}
	}
	if err == nil && shares() {
		info.Annotations[groupKey] = "true"
	}
	return info, err
}

// groupKey is that of tools/programs/shim.
const groupKey = "io.berth.shim.group"

// shares reports whether several pods may share this shim.
func shares() bool {
	_, err := os.Stat(filepath.Join(base(), "shared"))
	return err == nil
}

// Start starts the shim's process, or finds that of its group, as tools/programs/shim does.
func (m faultyManager) Start(ctx context.Context, params *bootapi.BootstrapParams) (result *bootapi.BootstrapResult, err error) {
	err = step("bootstrap", params.GetInstanceID(), func() error {
		var spec struct {
			Annotations map[string]string `json:"annotations"`
		}
		b, err := os.ReadFile("config.json")
		if err == nil {
			err = json.Unmarshal(b, &spec)
		}
		if group := spec.Annotations[groupKey]; err == nil && group != "" {
			params.InstanceID = group
		}
		result, err = m.Shim.Start(ctx, params)
		return err
	})
	return result, err
}

// Stop ends the remains of a dead shim.
func (m faultyManager) Stop(ctx context.Context, id string) (status shim.StopStatus, err error) {
	err = step("cleanup", id, func() error {
		var err error
		status, err = m.Shim.Stop(ctx, id)
		return err
	})
	return status, err
}
