// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/cri138"
)

// ImageService describes CRI's image service with the methods that are new in Kubernetes 1.38.
func ImageService() *grpc.ServiceDesc {
	d := runtimeapi.ImageService_ServiceDesc
	d.Methods = slices.Concat(d.Methods, []grpc.MethodDesc{
		methodOf("PullSecurityProfile", (*Image).PullSecurityProfile),
		methodOf("ListSecurityProfiles", (*Image).ListSecurityProfiles),
		methodOf("RemoveSecurityProfile", (*Image).RemoveSecurityProfile),
	})
	return &d
}

// methodOf describes a method of the image service.
func methodOf[Q, A any](name string, call func(*Image, context.Context, *Q) (*A, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(srv any, ctx context.Context, decode func(any) error, by grpc.UnaryServerInterceptor) (any, error) {
		req := new(Q)
		if err := decode(req); err != nil {
			return nil, err
		}
		handle := func(ctx context.Context, req any) (any, error) { return call(srv.(*Image), ctx, req.(*Q)) }
		if by == nil {
			return handle(ctx, req)
		}
		return by(ctx, req, &grpc.UnaryServerInfo{
			Server:     srv,
			FullMethod: "/" + runtimeapi.ImageService_ServiceDesc.ServiceName + "/" + name,
		}, handle)
	}}
}

// PullSecurityProfile refuses to pull a profile.
func (s *Image) PullSecurityProfile(context.Context, *cri138.PullSecurityProfileRequest) (*cri138.PullSecurityProfileResponse, error) {
	return nil, invalid("SecurityProfileInvalid: image: profiles from a registry are not supported")
}

// ListSecurityProfiles lists the profiles that were pulled.
func (s *Image) ListSecurityProfiles(context.Context, *cri138.ListSecurityProfilesRequest) (*cri138.ListSecurityProfilesResponse, error) {
	return &cri138.ListSecurityProfilesResponse{}, nil
}

// RemoveSecurityProfile removes a profile that was pulled.
func (s *Image) RemoveSecurityProfile(context.Context, *cri138.RemoveSecurityProfileRequest) (*cri138.RemoveSecurityProfileResponse, error) {
	return &cri138.RemoveSecurityProfileResponse{}, nil
}
