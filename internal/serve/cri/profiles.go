// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/base/cri138"
	"berth/internal/images/image"
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

// Profiles are the security profiles from registries.
type Profiles interface {
	Pull(ctx context.Context, ref string, auth *runtimeapi.AuthConfig, who image.Caller) (cached bool, err error)
	List() []image.Profile
	Remove(ctx context.Context, digest string) error
}

// errProfileInvalid begins the messages of errors that the kubelet does not try again after.
const errProfileInvalid = "SecurityProfileInvalid"

// PullSecurityProfile pulls a profile, which is not an image.
func (s *Image) PullSecurityProfile(ctx context.Context, req *cri138.PullSecurityProfileRequest) (*cri138.PullSecurityProfileResponse, error) {
	ref := req.GetImage().GetImage()
	switch {
	case ref == "":
		return nil, status.Error(codes.InvalidArgument, errProfileInvalid+": pull security profile: image.image names none")
	case req.GetProfileKind() != cri138.SecurityProfileKind_Seccomp:
		return nil, status.Errorf(codes.InvalidArgument, errProfileInvalid+": pull security profile %s: profile_kind: %s is not supported", ref, req.GetProfileKind())
	}
	if err := s.checkHandler("pull security profile", req.GetImage()); err != nil {
		return nil, status.Error(codes.InvalidArgument, errProfileInvalid+": "+err.Error())
	}
	cached, err := s.Profiles.Pull(ctx, ref, req.GetAuth(), callerOf(req.GetSandboxConfig()))
	if err != nil {
		return nil, profileFailure(err)
	}
	return &cri138.PullSecurityProfileResponse{Cached: cached}, nil
}

// profileFailure returns the error of a pull of a profile with the word by which the kubelet knows
// it.
func profileFailure(err error) error {
	word := func(c codes.Code, w string) error { return status.Error(c, w+": "+err.Error()) }
	switch {
	case errors.Is(err, crierrors.ErrSignatureValidationFailed):
		return signatureFailure(err)
	case errors.Is(err, image.ErrProfileInvalid):
		return word(codes.InvalidArgument, errProfileInvalid)
	case errors.Is(err, image.ErrRegistry):
		c := code(err)
		if c == codes.Unknown || c == codes.InvalidArgument || c == codes.Internal {
			c = codes.Unavailable
		}
		return word(c, crierrors.ErrRegistryUnavailable.Error())
	}
	return err
}

// ListSecurityProfiles lists the profiles that were pulled.
func (s *Image) ListSecurityProfiles(context.Context, *cri138.ListSecurityProfilesRequest) (*cri138.ListSecurityProfilesResponse, error) {
	resp := &cri138.ListSecurityProfilesResponse{}
	for _, p := range s.Profiles.List() {
		resp.Profiles = append(resp.Profiles, &cri138.SecurityProfileInfo{
			Digest: p.Digest,
			Refs:   p.Refs,
			Size:   uint64(p.Size),
		})
	}
	return resp, nil
}

// RemoveSecurityProfile removes a profile that was pulled. Containers that have it keep it.
func (s *Image) RemoveSecurityProfile(ctx context.Context, req *cri138.RemoveSecurityProfileRequest) (*cri138.RemoveSecurityProfileResponse, error) {
	if req.GetDigest() == "" {
		return nil, invalid("remove security profile: digest names none")
	}
	return &cri138.RemoveSecurityProfileResponse{}, s.Profiles.Remove(ctx, req.GetDigest())
}
