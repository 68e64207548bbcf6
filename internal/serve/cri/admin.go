// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"berth/internal/base/event"
	"berth/internal/base/lane"
	"berth/internal/history/bundle"
	"berth/internal/history/recorder"
	"berth/internal/history/why"
	"berth/internal/images/image"
)

// AdminServer answers what berth's CLI asks for beyond CRI. Answers are JSON values.
type AdminServer interface {
	// Import reads an image archive at a path of the host and says what became of its images.
	Import(ctx context.Context, path, ref string) (image.Imported, error)
	// PullProgress returns how far the pulls of an image have come, or nil if it is not being pulled.
	PullProgress(ctx context.Context, ref string) (any, error)
	// ImportProgress returns how much of an archive was imported, or nil if it is not being imported.
	ImportProgress(ctx context.Context, path string) (any, error)
	// Transfers returns the pulls and imports in flight.
	Transfers(ctx context.Context) (any, error)
	// Images returns all images with their users, and what the removal of each would give back.
	Images(ctx context.Context) (any, error)
	// PruneImages removes the images that nothing needs and that are older than an age, or says
	// which these are.
	PruneImages(ctx context.Context, dryRun bool, olderThan time.Duration) (any, error)
	// Disk returns what takes the space on the disk.
	Disk(ctx context.Context) (any, error)
	// VerifyImage compares an image with what it was made from, and may repair it.
	VerifyImage(ctx context.Context, ref string, repair bool) (any, error)
	// Timeline returns what happened to a sandbox or container, or on the node.
	Timeline(ctx context.Context, q recorder.Query) (any, error)
	// Records returns what happened on the node after a number, a part at a time.
	Records(ctx context.Context, after uint64, since time.Time) (recorder.Batch, error)
	// Bundle returns what a bundle has besides what happened: how the node is now.
	Bundle(ctx context.Context) (bundle.Node, error)
	// Why says why a sandbox or container is as it is.
	Why(ctx context.Context, of string) (any, error)
	// Lanes returns the lanes that are not idle.
	Lanes(ctx context.Context) (any, error)
	// Ended returns what is known of the ends that are not on record yet, by the ID of what has ended.
	Ended(ctx context.Context) (map[string]event.Exit, error)
}

const adminService = "berth.v1.Admin"

// adminMethods are the methods of berth.v1.Admin. Requests and answers are google.protobuf.Struct,
// so that no generated code is needed.
var adminMethods = map[string]func(ctx context.Context, srv AdminServer, in map[string]any) (any, error){
	"Import": func(ctx context.Context, srv AdminServer, in map[string]any) (any, error) {
		return srv.Import(ctx, text(in, "path"), text(in, "ref"))
	},
	"PullProgress": func(ctx context.Context, srv AdminServer, in map[string]any) (any, error) {
		return srv.PullProgress(ctx, text(in, "ref"))
	},
	"ImportProgress": func(ctx context.Context, srv AdminServer, in map[string]any) (any, error) {
		return srv.ImportProgress(ctx, text(in, "path"))
	},
	"Transfers": func(ctx context.Context, srv AdminServer, _ map[string]any) (any, error) {
		return srv.Transfers(ctx)
	},
	"Images": func(ctx context.Context, srv AdminServer, _ map[string]any) (any, error) {
		return srv.Images(ctx)
	},
	"PruneImages": func(ctx context.Context, srv AdminServer, in map[string]any) (any, error) {
		dryRun, _ := in["dryRun"].(bool)
		age, err := time.ParseDuration(text(in, "olderThan"))
		if err != nil {
			return nil, invalid("prune images: older than %q: it is not a duration", text(in, "olderThan"))
		}
		return srv.PruneImages(ctx, dryRun, age)
	},
	"Disk": func(ctx context.Context, srv AdminServer, _ map[string]any) (any, error) {
		return srv.Disk(ctx)
	},
	"VerifyImage": func(ctx context.Context, srv AdminServer, in map[string]any) (any, error) {
		repair, _ := in["repair"].(bool)
		return srv.VerifyImage(ctx, text(in, "image"), repair)
	},
	"Timeline": func(ctx context.Context, srv AdminServer, in map[string]any) (any, error) {
		q, err := queryOf(in)
		if err != nil {
			return nil, err
		}
		return srv.Timeline(ctx, q)
	},
	"Records": func(ctx context.Context, srv AdminServer, in map[string]any) (any, error) {
		q, err := queryOf(in)
		if err != nil {
			return nil, err
		}
		b, err := srv.Records(ctx, q.After, q.Since)
		if err != nil {
			return nil, err
		}
		// It is one text in the message: thousands of entries as messages of their own would take
		// the service a second.
		doc, err := json.Marshal(b)
		return string(doc), err
	},
	"Bundle": func(ctx context.Context, srv AdminServer, _ map[string]any) (any, error) {
		n, err := srv.Bundle(ctx)
		if err != nil {
			return nil, err
		}
		doc, err := json.Marshal(n) // one text, as in Records
		return string(doc), err
	},
	"Why": func(ctx context.Context, srv AdminServer, in map[string]any) (any, error) {
		if text(in, "id") == "" {
			return nil, invalid("why: no sandbox or container is named")
		}
		return srv.Why(ctx, text(in, "id"))
	},
	"Lanes": func(ctx context.Context, srv AdminServer, _ map[string]any) (any, error) {
		return srv.Lanes(ctx)
	},
	"Ended": func(ctx context.Context, srv AdminServer, _ map[string]any) (any, error) {
		return srv.Ended(ctx)
	},
}

// queryOf reads a question about what happened. Numbers and instants are texts.
func queryOf(in map[string]any) (q recorder.Query, err error) {
	q.Of = text(in, "id")
	q.Attempts, _ = in["attempts"].(bool)
	if node, _ := in["node"].(bool); q.Of == "" && !node {
		return q, invalid("timeline: neither a sandbox or container nor the node is named")
	}
	if since := text(in, "since"); since != "" {
		if q.Since, err = time.Parse(time.RFC3339Nano, since); err != nil {
			return q, invalid("timeline: since %q: it is not an instant", since)
		}
	}
	if after := text(in, "after"); after != "" {
		if q.After, err = strconv.ParseUint(after, 10, 64); err != nil {
			return q, invalid("timeline: after %q: it is not a number", after)
		}
	}
	return q, nil
}

func text(in map[string]any, key string) string {
	v, _ := in[key].(string)
	return v
}

// RegisterAdmin registers the service berth.v1.Admin.
func RegisterAdmin(s grpc.ServiceRegistrar, srv AdminServer) {
	desc := &grpc.ServiceDesc{ServiceName: adminService, HandlerType: (*AdminServer)(nil)}
	for _, name := range slices.Sorted(maps.Keys(adminMethods)) {
		desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: name, Handler: adminHandler(name, srv)})
	}
	s.RegisterService(desc, srv)
}

// adminHandler makes the handler that the gRPC compiler generates for a unary method.
func adminHandler(name string, srv AdminServer) grpc.MethodHandler {
	return func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		in := &structpb.Struct{}
		if err := decode(in); err != nil {
			return nil, err
		}
		handle := func(ctx context.Context, req any) (any, error) {
			out, err := adminMethods[name](ctx, srv, req.(*structpb.Struct).AsMap())
			if err != nil {
				return nil, err
			}
			return wrap(out)
		}
		if intercept == nil {
			return handle(ctx, in)
		}
		return intercept(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/" + adminService + "/" + name}, handle)
	}
}

// wrap puts a JSON value under the key "value" of a message.
func wrap(v any) (*structpb.Struct, error) {
	b, err := json.Marshal(map[string]any{"value": v})
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	s := &structpb.Struct{}
	err = s.UnmarshalJSON(b)
	return s, err
}

// IsUnimplemented reports whether an error says that the service does not have what was asked for:
// it is an earlier berth, or another runtime.
func IsUnimplemented(err error) bool { return status.Code(err) == codes.Unimplemented }

// IsNotFound reports whether a call has failed because its object is not there.
func IsNotFound(err error) bool { return status.Code(err) == codes.NotFound }

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

// Import makes the service read an image archive at a path of its host, and returns what became of
// the images.
func (c *Client) Import(ctx context.Context, path, ref string) (in image.Imported, err error) {
	err = c.admin(ctx, "Import", map[string]any{"path": path, "ref": ref}, &in)
	return in, err
}

// PullProgress returns how far the pulls of an image have come, or nil if it is not being pulled.
func (c *Client) PullProgress(ctx context.Context, ref string) (p *image.Progress, err error) {
	err = c.admin(ctx, "PullProgress", map[string]any{"ref": ref}, &p)
	return p, err
}

// ImportProgress returns how much of an archive, at an absolute path, was imported, or nil if it is
// not being imported.
func (c *Client) ImportProgress(ctx context.Context, path string) (p *image.Progress, err error) {
	err = c.admin(ctx, "ImportProgress", map[string]any{"path": path}, &p)
	return p, err
}

// VerifyImage compares an image with what it was made from, and repairs it if that is asked for.
func (c *Client) VerifyImage(ctx context.Context, ref string, repair bool) (parts []image.Part, err error) {
	err = c.admin(ctx, "VerifyImage", map[string]any{"image": ref, "repair": repair}, &parts)
	return parts, err
}

// Transfers returns the pulls and imports in flight, the oldest first.
func (c *Client) Transfers(ctx context.Context) (list []image.Transfer, err error) {
	err = c.admin(ctx, "Transfers", nil, &list)
	return list, err
}

// Images returns all images with their users, and what the removal of each would give back.
func (c *Client) Images(ctx context.Context) (list []image.Listed, err error) {
	err = c.admin(ctx, "Images", nil, &list)
	return list, err
}

// PruneImages removes the images that nothing uses, that are not pinned, and that came to the node
// longer ago than an age. With dryRun it removes nothing and returns the same.
func (c *Client) PruneImages(ctx context.Context, dryRun bool, olderThan time.Duration) (p image.Pruned, err error) {
	err = c.admin(ctx, "PruneImages", map[string]any{"dryRun": dryRun, "olderThan": olderThan.String()}, &p)
	return p, err
}

// Disk returns what takes the space on the disk.
func (c *Client) Disk(ctx context.Context) (d Disk, err error) {
	err = c.admin(ctx, "Disk", nil, &d)
	return d, err
}

// Disk is what takes the space on the disk of images.
type Disk struct {
	Path   string        `json:"path"` // of the directory that images are in; "" if it is not known
	Total  uint64        `json:"total"`
	Free   uint64        `json:"free"` // without what is reserved for root
	Shares []image.Share `json:"shares"`
}

// Timeline returns what happened to a sandbox or container.
func (c *Client) Timeline(ctx context.Context, id string) (v json.RawMessage, err error) {
	return c.History(ctx, recorder.Query{Of: id})
}

// History returns what happened. A question of nothing is about the node. An answer that comes in parts
// is put together.
func (c *Client) History(ctx context.Context, q recorder.Query) (json.RawMessage, error) {
	var entries []json.RawMessage
	for {
		v, err := c.history(ctx, q)
		if err != nil {
			return nil, err
		}
		var part struct {
			Entries []json.RawMessage `json:"entries"`
			Last    uint64            `json:"last"`
			More    bool              `json:"more"`
		}
		if err := json.Unmarshal(v, &part); err != nil {
			return nil, err
		}
		if !part.More && len(entries) == 0 {
			return v, nil
		}
		if entries = append(entries, part.Entries...); part.More && part.Last > q.After {
			q.After = part.Last
			continue
		}
		var whole map[string]json.RawMessage
		if err := json.Unmarshal(v, &whole); err != nil {
			return nil, err
		}
		if whole["entries"], err = json.Marshal(entries); err != nil {
			return nil, err
		}
		return json.Marshal(whole)
	}
}

func (c *Client) history(ctx context.Context, q recorder.Query) (v json.RawMessage, err error) {
	in := map[string]any{"id": q.Of, "node": q.Of == "", "attempts": q.Attempts, "after": strconv.FormatUint(q.After, 10)}
	if !q.Since.IsZero() {
		in["since"] = q.Since.Format(time.RFC3339Nano)
	}
	err = c.admin(ctx, "Timeline", in, &v)
	return v, err
}

// Records returns what happened on the node after a number, a part at a time, the oldest first,
// without what is older than since.
func (c *Client) Records(ctx context.Context, after uint64, since time.Time) (b recorder.Batch, err error) {
	in := map[string]any{"node": true, "after": strconv.FormatUint(after, 10)}
	if !since.IsZero() {
		in["since"] = since.Format(time.RFC3339Nano)
	}
	var doc string
	if err := c.admin(ctx, "Records", in, &doc); err != nil {
		return b, err
	}
	err = json.Unmarshal([]byte(doc), &b)
	return b, err
}

// Bundle returns what a bundle has besides what happened.
func (c *Client) Bundle(ctx context.Context) (n bundle.Node, err error) {
	var doc string
	if err := c.admin(ctx, "Bundle", nil, &doc); err != nil {
		return n, err
	}
	err = json.Unmarshal([]byte(doc), &n)
	return n, err
}

// Why says why a sandbox or container is as it is.
func (c *Client) Why(ctx context.Context, of string) (r Reason, err error) {
	err = c.admin(ctx, "Why", map[string]any{"id": of}, &r)
	return r, err
}

// Reason is why a sandbox or container is as it is, and what is waited for now.
type Reason struct {
	why.Answer
	Lane *lane.Lane `json:"lane,omitempty"` // nil: nothing
}

// History is what happened, and what is waited for now.
type History struct {
	recorder.Answer
	Lane *lane.Lane `json:"lane,omitempty"` // nil: nothing
}

// Ended returns what is known of the ends that are not on record yet, by the ID of what has ended:
// CRI has each of them as it was before.
func (c *Client) Ended(ctx context.Context) (ended map[string]event.Exit, err error) {
	err = c.admin(ctx, "Ended", nil, &ended)
	return ended, err
}

// Lanes returns the lanes that are not idle.
func (c *Client) Lanes(ctx context.Context) (v json.RawMessage, err error) {
	err = c.admin(ctx, "Lanes", nil, &v)
	return v, err
}
