// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/images/image"
)

// Images implements berthv1.NodeServer.
func (n *Node) Images(ctx context.Context, _ *berthv1.ImagesRequest) (*berthv1.ImagesResponse, error) {
	if err := n.Reach(ctx); err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	list, err := n.ImageService.Details(ctx, n.users)
	if err != nil {
		return nil, err
	}
	resp := &berthv1.ImagesResponse{}
	for _, i := range list {
		m := &berthv1.Image{
			Id:          i.ID,
			RepoTags:    i.RepoTags,
			RepoDigests: i.RepoDigests,
			Size:        i.Size,
			Disk:        i.Disk,
			Frees:       i.Frees,
			Created:     timestamp(i.Created),
			Pinned:      i.Pinned,
			Users:       i.Users,
			Artifact:    i.Artifact,
			Checkpoint:  i.Checkpoint,
		}
		for _, p := range i.Pins {
			m.Pins = append(m.Pins, string(p))
		}
		resp.Images = append(resp.Images, m)
	}
	for _, p := range n.Profiles.List() {
		resp.Profiles = append(resp.Profiles, &berthv1.Profile{Digest: p.Digest, Refs: p.Refs, Size: p.Size})
	}
	return resp, nil
}

// Transfers implements berthv1.NodeServer.
func (n *Node) Transfers(ctx context.Context, _ *berthv1.TransfersRequest) (*berthv1.TransfersResponse, error) {
	resp := &berthv1.TransfersResponse{}
	for _, t := range n.ImageService.Transfers(ctx) {
		resp.Transfers = append(resp.Transfers, &berthv1.Transfer{
			Image:     t.Image,
			Kind:      t.Kind,
			State:     t.State,
			Since:     timestamp(t.Since),
			Total:     t.Total,
			Fetched:   t.Fetched,
			Blobs:     count(t.Blobs),
			Complete:  count(t.Complete),
			Came:      t.Came,
			Unpacking: count(t.Unpacking),
			Queued:    count(t.Queued),
			Waiters:   t.Waiters,
			Archive:   t.Archive,
			Problem:   t.Problem,
		})
	}
	return resp, nil
}

// PullProgress implements berthv1.NodeServer.
func (n *Node) PullProgress(ctx context.Context, req *berthv1.PullProgressRequest) (*berthv1.PullProgressResponse, error) {
	p, err := n.ImageService.Progress(ctx, req.GetImage())
	return &berthv1.PullProgressResponse{Progress: progress(p)}, err
}

// ImportProgress implements berthv1.NodeServer.
func (n *Node) ImportProgress(_ context.Context, req *berthv1.ImportProgressRequest) (*berthv1.ImportProgressResponse, error) {
	return &berthv1.ImportProgressResponse{Progress: progress(n.ImageService.ImportProgress(req.GetPath()))}, nil
}

func progress(p *image.Progress) *berthv1.Progress {
	if p == nil {
		return nil
	}
	return &berthv1.Progress{
		Total:    p.Total,
		Fetched:  p.Fetched,
		Blobs:    count(p.Blobs),
		Complete: count(p.Complete),
	}
}

// Disk implements berthv1.NodeServer.
func (n *Node) Disk(ctx context.Context, _ *berthv1.DiskRequest) (*berthv1.DiskResponse, error) {
	if err := n.Reach(ctx); err != nil {
		return nil, fmt.Errorf("measure the disk: %w", err)
	}
	shares, err := n.ImageService.Shares(ctx, n.users)
	if err != nil {
		return nil, err
	}
	resp := &berthv1.DiskResponse{Path: n.ImageService.Mountpoint()}
	profiles := image.Share{What: "profiles", Note: "seccomp profiles from registries"}
	for _, p := range n.Profiles.List() {
		profiles.Count++
		profiles.Bytes += p.Size
	}
	for _, s := range append(append(shares, profiles), n.Disks.shares(ctx, n.logs())...) {
		resp.Shares = append(resp.Shares, &berthv1.Share{
			What:        s.What,
			Count:       count(s.Count),
			Bytes:       s.Bytes,
			Reclaimable: s.Reclaimable,
			Unknown:     count(s.Unknown),
			Note:        s.Note,
		})
	}
	if resp.GetPath() != "" {
		resp.Total, resp.Free = n.Disks.space(ctx, resp.GetPath())
	}
	return resp, nil
}

// VerifyImage implements berthv1.NodeServer.
func (n *Node) VerifyImage(ctx context.Context, req *berthv1.VerifyImageRequest) (*berthv1.VerifyImageResponse, error) {
	parts, err := n.verify(ctx, req.GetImage(), false)
	return &berthv1.VerifyImageResponse{Parts: parts}, err
}

// verify compares an image or a profile with its sources, and repairs it if repair is set.
func (n *Node) verify(ctx context.Context, ref string, repair bool) (parts []*berthv1.Part, err error) {
	if err := n.Reach(ctx); err != nil {
		return nil, fmt.Errorf("verify image %s: %w", ref, err)
	}
	list, err := n.parts(ctx, ref, repair)
	for _, p := range list {
		parts = append(parts, &berthv1.Part{
			Kind:    p.Kind,
			Id:      p.ID,
			Outcome: p.Outcome,
			Detail:  p.Detail,
		})
	}
	return parts, err
}

func (n *Node) parts(ctx context.Context, ref string, repair bool) ([]image.Part, error) {
	img, err := n.ImageService.Resolve(ref)
	if err == nil {
		return n.Verifier.Verify(ctx, img.Name, repair)
	}
	if p, missing := n.Profiles.Verify(ref, repair); missing == nil {
		return []image.Part{p}, nil
	}
	return nil, err
}

// users names the containers that use each image, by the ID of the image: as
// NAMESPACE/POD/CONTAINER, in any state. A container uses the images that it mounts, too.
func (n *Node) users() map[string][]string {
	pods := map[string]string{}
	for _, p := range n.Pods.ListPodSandbox(&runtimeapi.PodSandboxFilter{}) {
		pods[p.GetId()] = p.GetMetadata().GetNamespace() + "/" + p.GetMetadata().GetName()
	}
	by := map[string][]string{}
	add := func(id, who string) {
		if id != "" && !slices.Contains(by[id], who) {
			by[id] = append(by[id], who)
		}
	}
	for _, c := range n.Pods.ListContainers(&runtimeapi.ContainerFilter{}) {
		who := pods[c.GetPodSandboxId()] + "/" + c.GetMetadata().GetName()
		add(c.GetImageId(), who)
		st, err := n.Pods.ContainerStatus(context.Background(), c.GetId(), false) // from memory
		if err != nil {
			continue // removed meanwhile
		}
		for _, m := range st.GetStatus().GetMounts() {
			if ref := cmp.Or(m.GetImage().GetImageRef(), m.GetImage().GetImage()); ref != "" {
				if i, err := n.ImageService.Resolve(ref); err == nil {
					add(i.ID, who)
				}
			}
		}
	}
	return by
}

// logs returns the paths of the logs of all containers.
func (n *Node) logs() (paths []string) {
	for _, c := range n.Pods.ListContainers(&runtimeapi.ContainerFilter{}) {
		st, err := n.Pods.ContainerStatus(context.Background(), c.GetId(), false)
		if err == nil && st.GetStatus().GetLogPath() != "" {
			paths = append(paths, st.GetStatus().GetLogPath())
		}
	}
	return paths
}
