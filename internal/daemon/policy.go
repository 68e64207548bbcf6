// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/config"
	"berth/internal/image"
	"berth/internal/policy"
)

// openPolicy makes what decides which images are allowed.
func (d *daemon) openPolicy() error {
	d.policy = policy.NewGuard(policy.Config{
		Verified: filepath.Join(d.cfg.Root, "verified.json"),
		Logger:   d.log.Logger,
		Decided:  d.metrics.Decided,
		Contain: func(what string, f func() error) error {
			_, err := image.Contain(d.log.Logger, d.panickedOverImage, what, func() (struct{}, error) { return struct{}{}, f() })
			return err
		},
	})
	d.metrics.ReadPolicy(d.policy)
	d.usePolicy(d.cfg.Image)
	return nil
}

// usePolicy puts the policy into effect that is configured.
func (d *daemon) usePolicy(cfg config.Image) {
	d.policy.Use(cfg.PolicyFile, cfg.PolicyFailure == config.PolicyOpen)
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
func (p createPolicy) Allow(ctx context.Context, namespace, asked, id string) error {
	return p.guard.Create(ctx, namespace, p.image(asked, id), p.registry)
}

// Restore implements pod.Policy.
func (p createPolicy) Restore(ctx context.Context, namespace, asked, id string) error {
	return p.guard.Restore(ctx, namespace, p.image(asked, id), p.registry)
}

func (p createPolicy) registry(ref string) policy.Registry { return p.images.Registry(ref) }

// image returns what the policy is asked about.
func (p createPolicy) image(asked, id string) policy.Image {
	i := policy.Image{ID: id, Asked: asked}
	for _, st := range p.images.Names(id) {
		i.Names = append(i.Names, policy.Named{Name: st.Name, Target: st.Target})
	}
	slices.SortFunc(i.Names, func(a, b policy.Named) int { return cmp.Compare(a.Name, b.Name) }) // the same refusal each time
	return i
}
