// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"path/filepath"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/config"
	"berth/internal/heart/pod"
	"berth/internal/images/image"
	"berth/internal/images/policy"
)

// openPolicy makes what decides which images are allowed.
func openPolicy(b base) *policy.Guard {
	guard := policy.NewGuard(policy.Config{
		Verified: filepath.Join(b.cfg.Root, "verified.json"),
		Logger:   b.log.Logger,
		Decided:  b.metrics.Decided,
		Contain: func(what string, f func() error) error {
			_, err := image.Contain(b.log.Logger, b.panickedOverImage, what, func() (struct{}, error) { return struct{}{}, f() })
			return err
		},
	})
	b.metrics.ReadPolicy(guard)
	usePolicy(guard, b.cfg.Image)
	return guard
}

// usePolicy puts the policy into effect that is configured.
func usePolicy(guard *policy.Guard, cfg config.Image) {
	guard.Use(cfg.PolicyFile, cfg.PolicyFailure == config.PolicyOpen)
}

// pullPolicy plugs package policy into the image service.
type pullPolicy struct{ guard *policy.Guard }

// Pull implements image.Policy.
func (p pullPolicy) Pull(namespace, name string) (image.Pass, error) {
	t, signed, err := p.guard.Pull(namespace, name)
	if !signed || err != nil {
		return nil, err
	}
	return ticket{t}, nil
}

// ticket is what a pull has to pass.
type ticket struct{ policy.Ticket }

// Pass implements image.Pass.
func (t ticket) Pass(ctx context.Context, name string, target ocispec.Descriptor, from image.Registry) error {
	return t.Ticket.Pass(ctx, name, target, from)
}

// createPolicy plugs package policy into the controller.
type createPolicy struct {
	guard  *policy.Guard
	images *image.Service
}

// Allow implements pod.Policy.
func (p createPolicy) Allow(ctx context.Context, namespace, asked string, img pod.Image) error {
	return p.guard.Create(ctx, namespace, judged(asked, img), p.registry)
}

// Restore implements pod.Policy.
func (p createPolicy) Restore(ctx context.Context, namespace, asked string, img pod.Image) error {
	return p.guard.Restore(ctx, namespace, judged(asked, img), p.registry)
}

func (p createPolicy) registry(ref string) policy.Registry { return p.images.Registry(ref) }

// judged returns what the policy is asked about.
func judged(asked string, img pod.Image) policy.Image {
	i := policy.Image{ID: img.ID, Asked: asked}
	for _, n := range img.Names {
		i.Names = append(i.Names, policy.Named{Name: n.Name, Target: n.Target})
	}
	return i
}
