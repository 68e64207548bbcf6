// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/base/cri138"
	"berth/internal/images/image"
)

type unpulled struct {
	Profiles
	err error
}

func (f unpulled) Pull(context.Context, string, *runtimeapi.AuthConfig, image.Caller) (bool, error) {
	return true, f.err
}

// PROPERTIES 69: the kubelet reads the first word of an error of PullSecurityProfile, and does not ask
// again after SecurityProfileInvalid.
func TestErrorsOfProfilesHaveTheirWords(t *testing.T) {
	good := &cri138.PullSecurityProfileRequest{Image: &runtimeapi.ImageSpec{Image: "a@b"}, ProfileKind: cri138.SecurityProfileKind_Seccomp}
	for name, tt := range map[string]struct {
		req  *cri138.PullSecurityProfileRequest
		err  error
		code codes.Code
		word string
	}{
		"it is there":  {good, nil, codes.OK, ""},
		"no image":     {&cri138.PullSecurityProfileRequest{ProfileKind: cri138.SecurityProfileKind_Seccomp}, nil, codes.InvalidArgument, "SecurityProfileInvalid: "},
		"no kind":      {&cri138.PullSecurityProfileRequest{Image: good.GetImage()}, nil, codes.InvalidArgument, "SecurityProfileInvalid: "},
		"another kind": {&cri138.PullSecurityProfileRequest{Image: good.GetImage(), ProfileKind: 7}, nil, codes.InvalidArgument, "SecurityProfileInvalid: "},
		"a handler": {&cri138.PullSecurityProfileRequest{
			Image:       &runtimeapi.ImageSpec{Image: "a@b", RuntimeHandler: "absent"},
			ProfileKind: cri138.SecurityProfileKind_Seccomp,
		}, nil, codes.InvalidArgument, "SecurityProfileInvalid: "},
		"invalid":      {good, fmt.Errorf("x: %w", image.ErrProfileInvalid), codes.InvalidArgument, "SecurityProfileInvalid: "},
		"unsigned":     {good, fmt.Errorf("x: %w", crierrors.ErrSignatureValidationFailed), codes.Unknown, "SignatureValidationFailed: "},
		"away":         {good, fmt.Errorf("x: %w", image.ErrRegistry), codes.Unavailable, "RegistryUnavailable: "},
		"not there":    {good, fmt.Errorf("%w: %w", errdefs.ErrNotFound, image.ErrRegistry), codes.NotFound, "RegistryUnavailable: "},
		"not allowed":  {good, errdefs.ErrPermissionDenied, codes.PermissionDenied, ""},
		"no more room": {good, errdefs.ErrResourceExhausted, codes.ResourceExhausted, ""},
	} {
		s := &Image{Profiles: unpulled{err: tt.err}, Handlers: map[string]string{"runc": ""}}
		resp, err := s.PullSecurityProfile(t.Context(), tt.req)
		if Code(err) != tt.code || !strings.HasPrefix(status.Convert(toStatus(err)).Message(), tt.word) || (err == nil) != resp.GetCached() {
			t.Errorf("%s: %v", name, err)
		}
	}
}
