// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
)

// evictions reads evictions from the messages of plug-ins, because the adaptation does not pass
// them on.
func (s *Service) evictions() adaptation.Option {
	return adaptation.WithTTRPCOptions(
		[]ttrpc.ClientOpts{guarded(s.cfg.RequestTimeout, s.answered)},
		[]ttrpc.ServerOpt{ttrpc.WithChainUnaryServerInterceptor(s.called)},
	)
}

// answered makes a call to a plug-in, and adds the evictions in its answer to s.evicted. A plug-in
// can answer with evictions only while turn is held.
func (s *Service) answered(ctx context.Context, req *ttrpc.Request, resp *ttrpc.Response, _ *ttrpc.UnaryClientInfo, invoke ttrpc.Invoker) error {
	if err := invoke(ctx, req, resp); err != nil {
		return err
	}
	var answer interface {
		proto.Message
		GetEvict() []*api.ContainerEviction
	}
	switch req.Method {
	case "CreateContainer":
		answer = &api.CreateContainerResponse{}
	case "UpdateContainer":
		answer = &api.UpdateContainerResponse{}
	default:
		return nil
	}
	// An answer that cannot be read is an error of the call itself.
	if err := proto.Unmarshal(resp.GetPayload(), answer); err == nil {
		s.evicted = append(s.evicted, answer.GetEvict()...)
	}
	return nil
}

// called serves a call of a plug-in, and queues the evictions that it asks for.
func (s *Service) called(ctx context.Context, unmarshal ttrpc.Unmarshaler, _ *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
	var evict []*api.ContainerEviction
	answer, err := method(ctx, func(request any) error {
		err := unmarshal(request)
		if r, ok := request.(*api.UpdateContainersRequest); ok && err == nil {
			evict = r.GetEvict()
		}
		return err
	})
	if err == nil {
		s.ask(nil, evict)
	}
	return answer, err
}
