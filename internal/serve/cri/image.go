// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/images/image"
)

// Images is the image service's view of the room that has the images.
type Images interface {
	List(f *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error)
	Status(ref string) (*runtimeapi.Image, *image.Image, error)
	Pull(ctx context.Context, ref string, auth *runtimeapi.AuthConfig, who image.Caller) (string, error)
	Remove(ctx context.Context, ref string) error
	FsInfo(ctx context.Context) *runtimeapi.ImageFsInfoResponse
}

// Image serves CRI's image service.
type Image struct {
	runtimeapi.UnsafeImageServiceServer // as in Runtime

	Images   Images
	Profiles Profiles
	// Handlers has the snapshotter of each runtime handler; "" for that of most images.
	Handlers map[string]string
}

// checkHandler refuses an image for a runtime handler that is not configured (CRI,
// ImageSpec.runtime_handler). verb names the call.
func (s *Image) checkHandler(verb string, i *runtimeapi.ImageSpec) error {
	if _, ok := s.Handlers[i.GetRuntimeHandler()]; i.GetRuntimeHandler() != "" && !ok {
		return invalid("%s %s: image.runtime_handler: %q is not configured", verb, i.GetImage(), i.GetRuntimeHandler())
	}
	return nil
}

// ListImages lists images.
func (s *Image) ListImages(_ context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	if err := s.checkHandler("list images", req.GetFilter().GetImage()); err != nil {
		return nil, err
	}
	list, err := s.Images.List(req.GetFilter())
	return &runtimeapi.ListImagesResponse{Images: list}, err
}

// ImageStatus returns the status of one image. The answer is empty if the image does not exist.
func (s *Image) ImageStatus(_ context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	ref := req.GetImage().GetImage()
	if ref == "" {
		return nil, invalid("image status: no image is named")
	}
	if err := s.checkHandler("image status", req.GetImage()); err != nil {
		return nil, err
	}
	m, i, err := s.Images.Status(ref)
	if err != nil || m == nil {
		return &runtimeapi.ImageStatusResponse{}, err
	}
	resp := &runtimeapi.ImageStatusResponse{Image: m}
	if req.GetVerbose() {
		b, err := json.Marshal(map[string]any{"chainID": i.ChainID, "imageSpec": map[string]any{"config": i.Config}})
		if err != nil {
			return nil, err
		}
		resp.Info = map[string]string{"info": string(b)}
	}
	return resp, nil
}

// PullImage pulls an image.
func (s *Image) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	ref := req.GetImage().GetImage()
	if ref == "" {
		return nil, invalid("pull image: no image is named")
	}
	if err := s.checkHandler("pull image", req.GetImage()); err != nil {
		return nil, err
	}
	who := callerOf(req.GetSandboxConfig())
	who.Snapshotter = s.Handlers[cmp.Or(req.GetImage().GetRuntimeHandler(), req.GetImage().GetAnnotations()[annotationHandler])]
	id, err := s.Images.Pull(ctx, ref, req.GetAuth(), who)
	if errors.Is(err, crierrors.ErrSignatureValidationFailed) {
		return nil, signatureFailure(err)
	}
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PullImageResponse{ImageRef: id}, nil
}

// annotationHandler is an annotation of a pod that the kubelet sends with its images. As with
// containerd, it names the handler that an image is pulled for, because the kubelet sends
// ImageSpec.runtime_handler only with a feature that is off.
const annotationHandler = "io.containerd.cri.runtime-handler"

// callerOf returns the pod that a pull is for.
func callerOf(pod *runtimeapi.PodSandboxConfig) (who image.Caller) {
	if m := pod.GetMetadata(); m != nil {
		who.Name, who.Namespace = m.GetNamespace()+"/"+m.GetName(), m.GetNamespace()
	}
	return who
}

// RemoveImage removes an image.
func (s *Image) RemoveImage(ctx context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	ref := req.GetImage().GetImage()
	if ref == "" {
		return nil, invalid("remove image: no image is named")
	}
	if err := s.checkHandler("remove image", req.GetImage()); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveImageResponse{}, s.Images.Remove(ctx, ref)
}

// ImageFsInfo reports how much of which file systems images and writable layers use.
func (s *Image) ImageFsInfo(ctx context.Context, _ *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return s.Images.FsInfo(ctx), nil
}
