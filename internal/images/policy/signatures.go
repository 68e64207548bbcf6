// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// askTimeout bounds the questions about the signatures of one image, all together: the caller of a
// pull waits for them, and so does a container that is made.
const askTimeout = time.Minute

// ask returns nil if the target of a name has the signatures that a rule wants, and remembers it.
// It asks in any case, because a program of the rule may refuse today a digest that it verified
// before.
func (g *Guard) ask(ctx context.Context, p *Policy, r *Rule, n name, target ocispec.Descriptor, from Registry) error {
	id, err := r.wants()
	if err == nil {
		err = g.cfg.Contain(n.full, func() error { return r.verify(ctx, p.VerifierTimeout, n, target, from) })
	}
	if why, ok := isUnsigned(err); ok {
		g.verified.forget(id, n, target.Digest)
		return unsigned(p, r, n.full, why)
	}
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("image %s: ask for its signatures: %w", n.full, ctx.Err())
		}
		// The reason is text, because its kind would be taken for an answer.
		return fmt.Errorf("image %s: rule %q of %s wants signatures, which could not be asked for: %s: %w", n.full, r.Name, p.File, err.Error(), errdefs.ErrUnavailable)
	}
	g.verified.add(id, n, target.Digest)
	return nil
}

// wants returns a text that differs when the signatures that the rule wants do: other keys, or
// other programs.
func (r *Rule) wants() (string, error) {
	if r.VerifierDir == "" {
		return r.identity, nil
	}
	programs, err := identifyVerifiers(r.VerifierDir)
	return r.identity + "\n" + programs, err
}

// verify returns nil if all that the rule wants is there, and errUnsigned if not. Any other error:
// that could not be asked.
func (r *Rule) verify(ctx context.Context, perVerifier time.Duration, n name, target ocispec.Descriptor, from Registry) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if len(r.Keys) > 0 {
		if err := verifyCosign(ctx, from, n, target.Digest, r.Keys); err != nil {
			return err
		}
	}
	if r.VerifierDir != "" {
		return runVerifiers(ctx, r.VerifierDir, perVerifier, n, target)
	}
	return nil
}
