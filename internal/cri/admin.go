// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
)

// AdminServer is what berth's CLI asks for beyond CRI. Answers are JSON values.
type AdminServer interface {
	Import(ctx context.Context, path, ref string) ([]string, error)
	Timeline(ctx context.Context, id string) (any, error)
	Lanes(ctx context.Context) (any, error)
}

const adminService = "berth.v1.Admin"

// RegisterAdmin serves berth.v1.Admin: three methods whose requests and answers are
// google.protobuf.Struct, so that no generated code is needed.
func RegisterAdmin(s grpc.ServiceRegistrar, srv AdminServer) {
	method := func(name string, call func(ctx context.Context, in map[string]any) (any, error)) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(_ any, ctx context.Context, dec func(any) error, ic grpc.UnaryServerInterceptor) (any, error) {
			in := &structpb.Struct{}
			if err := dec(in); err != nil {
				return nil, err
			}
			h := func(ctx context.Context, req any) (any, error) {
				out, err := call(ctx, req.(*structpb.Struct).AsMap())
				if err != nil {
					return nil, err
				}
				return wrap(out)
			}
			if ic == nil {
				return h(ctx, in)
			}
			return ic(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/" + adminService + "/" + name}, h)
		}}
	}
	text := func(in map[string]any, key string) string { v, _ := in[key].(string); return v }
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: adminService, HandlerType: (*AdminServer)(nil),
		Methods: []grpc.MethodDesc{
			method("Import", func(ctx context.Context, in map[string]any) (any, error) {
				return srv.Import(ctx, text(in, "path"), text(in, "ref"))
			}),
			method("Timeline", func(ctx context.Context, in map[string]any) (any, error) { return srv.Timeline(ctx, text(in, "id")) }),
			method("Lanes", func(ctx context.Context, _ map[string]any) (any, error) { return srv.Lanes(ctx) }),
		},
	}, srv)
}

// wrap puts a JSON value under the key "value".
func wrap(v any) (*structpb.Struct, error) {
	b, err := json.Marshal(map[string]any{"value": v})
	if err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	s := &structpb.Struct{}
	err = s.UnmarshalJSON(b)
	return s, err
}

func (c *Client) admin(ctx context.Context, name string, in map[string]any, out any) error {
	req, err := structpb.NewStruct(in)
	if err != nil {
		return err
	}
	resp := &structpb.Struct{}
	if err := c.conn.Invoke(ctx, "/"+adminService+"/"+name, req, resp); err != nil {
		return err
	}
	b, err := json.Marshal(resp.AsMap()["value"])
	if err != nil {
		return err
	}
	return json.Unmarshal(b, out)
}

// Import has berth read an image archive at a path of its host and returns the images' names.
func (c *Client) Import(ctx context.Context, path, ref string) (names []string, err error) {
	err = c.admin(ctx, "Import", map[string]any{"path": path, "ref": ref}, &names)
	return names, err
}

// Timeline is what happened to a sandbox or container.
func (c *Client) Timeline(ctx context.Context, id string) (v json.RawMessage, err error) {
	err = c.admin(ctx, "Timeline", map[string]any{"id": id}, &v)
	return v, err
}

// Lanes are the lanes that are not idle.
func (c *Client) Lanes(ctx context.Context) (v json.RawMessage, err error) {
	err = c.admin(ctx, "Lanes", nil, &v)
	return v, err
}
