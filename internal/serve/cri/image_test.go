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

	"berth/internal/images/image"
)

// pulling pulls nothing, with an error.
type pulling struct {
	Images
	err error
	who image.Caller
}

func (p *pulling) Pull(_ context.Context, _ string, _ *runtimeapi.AuthConfig, who image.Caller) (string, error) {
	p.who = who
	return "", p.err
}

// PROPERTIES 40: the kubelet tells of signatures only where the code is Unknown and the message
// begins with CRI's name of the error. All else that is refused has a code of its own.
func TestThePodOfAPullIsKnownAndTheKubeletKnowsTheError(t *testing.T) {
	for _, tt := range []struct {
		err    error
		code   codes.Code
		begins string
	}{
		{fmt.Errorf("pull x: %w: %w", crierrors.ErrSignatureValidationFailed, errdefs.ErrPermissionDenied), codes.Unknown, "SignatureValidationFailed: pull x"},
		{fmt.Errorf("pull x: rule: %w", errdefs.ErrPermissionDenied), codes.PermissionDenied, "pull x: rule"},
		{fmt.Errorf("pull x: away: %w", errdefs.ErrUnavailable), codes.Unavailable, "pull x: away"},
	} {
		p := &pulling{err: tt.err}
		s := &Image{Images: p}
		_, err := s.PullImage(t.Context(), &runtimeapi.PullImageRequest{
			Image: &runtimeapi.ImageSpec{Image: "x"},
			SandboxConfig: &runtimeapi.PodSandboxConfig{
				Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "team"},
			},
		})
		got := status.Convert(toStatus(err))
		if got.Code() != tt.code || !strings.HasPrefix(got.Message(), tt.begins) {
			t.Errorf("%v: %v", tt.err, got)
		}
		if p.who != (image.Caller{Name: "team/web", Namespace: "team"}) {
			t.Errorf("%+v", p.who)
		}
		_, _ = s.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "x"}})
		if p.who != (image.Caller{}) {
			t.Errorf("for no pod: %+v", p.who)
		}
	}
}
