// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Image is an image on this node that a container is to be made from, or mounts.
type Image struct {
	ID string
	// Asked is the pod's name for it; "" if that is not known. It may be an ID, or the beginning of
	// one.
	Asked string
	// Names are all that it is called on this node, with a tag or a digest.
	Names []Named
}

// Named is a name of an image, and its target.
type Named struct {
	Name   string
	Target ocispec.Descriptor // of the manifest or index
}

// Create decides whether a container of a pod in a namespace may be made from an image that is on
// this node, however it came here.
//
// Where the pod asks for the image by a name, that name has to be allowed. And one of the names
// that the image has on this node has to be: the same content under another name is the same image,
// and digest_only is about the name that the pod asks for. Signatures that a rule wants are those
// that were verified when the image was pulled; if they were not, the registry of the name is
// asked, as it is configured on this node, since credentials come with pulls alone.
//
// ErrPermissionDenied names the rule. ErrUnavailable: it could not be asked.
func (g *Guard) Create(ctx context.Context, namespace string, img Image, from func(ref string) Registry) error {
	p, checked, err := g.rules()
	if p == nil {
		if !checked {
			g.unchecked(AtCreation, err)
		}
		if err != nil {
			err = fmt.Errorf("image %s: %w", img.title(), err)
		}
		return err
	}
	c := creation{g, p, namespace, img, from, false}
	r, err := c.decide(ctx)
	g.decided(AtCreation, r, err)
	return err
}

// Restore decides whether a container of a pod in a namespace may be restored from a checkpoint in
// an image that is on this node, as Create does, by rules that say so (restore) alone. Such an
// image decides on the processes and their rights within the container. So nothing is restored
// without a file of rules, nor with one that cannot be used, whichever failure mode [Guard.Use]
// has.
func (g *Guard) Restore(ctx context.Context, namespace string, img Image, from func(ref string) Registry) error {
	p, checked, err := g.rules()
	switch {
	case p != nil:
		c := creation{g, p, namespace, img, from, true}
		r, err := c.decide(ctx)
		g.decided(AtCreation, r, err)
		return err
	case !checked && err == nil: // everything else is let in
		why := "it has just changed"
		if _, broken := g.Broken(); broken != nil {
			why = broken.Error() // as text: it is not the request that is invalid
		}
		err = fmt.Errorf("the image policy cannot be used, and without a rule nothing is restored from an image: %s: %w", why, errdefs.ErrUnavailable)
	case err == nil:
		err = fmt.Errorf("it holds a checkpoint of a container, and no image policy lets one be restored from an image; give its repository a rule with restore = true in image.policy_file, or name an archive on this node: %w", errdefs.ErrPermissionDenied)
	}
	if !checked {
		g.unchecked(AtCreation, err)
	}
	return fmt.Errorf("image %s: %w", img.title(), err)
}

// title is the name of an image in an error.
func (i Image) title() string {
	switch {
	case i.Asked != "":
		return i.Asked
	case len(i.Names) > 0:
		return i.Names[0].Name
	}
	return i.ID
}

// asksByID reports whether the pod asks for the image by its ID, or by no name.
func (i Image) asksByID() bool {
	hex := strings.TrimPrefix(i.Asked, "sha256:")
	return i.Asked == "" || len(hex) >= 4 && strings.HasPrefix(strings.TrimPrefix(i.ID, "sha256:"), hex)
}

// creation is one question of Create.
type creation struct {
	g         *Guard
	p         *Policy
	namespace string
	img       Image
	from      func(ref string) Registry
	restores  bool // a checkpoint is to be restored
}

// noRestore is why a rule that allows an image does not let it be restored.
const noRestore = "it allows the image, and does not say that what it has a checkpoint of may be restored (restore = true)"

// lets reports whether a rule lets an image in.
func (c creation) lets(r *Rule) bool { return r.Allow && (r.Restore || !c.restores) }

// decide returns the rule that decided.
func (c creation) decide(ctx context.Context) (*Rule, error) {
	var rule *Rule
	if !c.img.asksByID() {
		n, err := parseName(c.img.Asked)
		if err != nil {
			return nil, badReference(c.img.Asked, err)
		}
		d := c.p.decide(c.namespace, n)
		if !d.Allowed {
			return d.Rule, refuse(c.p, d.Rule, c.namespace, n.full, d.Why)
		}
		if !c.lets(d.Rule) {
			return d.Rule, refuse(c.p, d.Rule, c.namespace, n.full, noRestore)
		}
		if d.Rule.Signed() {
			if err := c.signed(ctx, d.Rule, n); err != nil {
				return d.Rule, err
			}
		}
		rule = d.Rule
	}
	by, err := c.named(ctx)
	if rule == nil || err != nil {
		rule = by
	}
	return rule, err
}

// named looks for a name of the image that is allowed, and returns the rule that allows it, or one
// that does not. Names that need no signatures come first: they need not be waited for.
func (c creation) named(ctx context.Context) (*Rule, error) {
	if len(c.img.Names) == 0 {
		r := c.p.find(c.namespace, name{})
		switch {
		case !r.Allow:
			return r, refuse(c.p, r, c.namespace, c.img.ID, "the image has no name on this node, and the rule denies it")
		case !c.lets(r):
			return r, refuse(c.p, r, c.namespace, c.img.ID, noRestore)
		case r.Signed():
			return r, unsigned(c.p, r, c.img.ID, "the image has no name on this node, so that no registry can be asked for its signatures")
		}
		return r, nil
	}
	var rule *Rule
	var no error
	var signed []name
	for _, named := range c.img.Names {
		n, err := parseName(named.Name)
		if err != nil {
			continue // another client of containerd's has named it so
		}
		switch r := c.p.find(c.namespace, n); {
		case !r.Allow:
			if rule == nil {
				rule, no = r, refuse(c.p, r, c.namespace, n.full, "it denies the image, and no name that it has on this node is allowed")
			}
		case !c.lets(r):
			rule, no = r, refuse(c.p, r, c.namespace, n.full, noRestore)
		case r.Signed():
			signed = append(signed, n)
		default:
			return r, nil
		}
	}
	asked := map[*Rule]map[string]bool{} // repositories
	var unanswered error
	for _, n := range signed {
		r := c.p.find(c.namespace, n)
		if asked[r] == nil {
			asked[r] = map[string]bool{}
		}
		if asked[r][n.repository] {
			continue
		}
		asked[r][n.repository] = true
		err := c.signed(ctx, r, n)
		if err == nil {
			return r, nil
		}
		if !errdefs.IsPermissionDenied(err) {
			unanswered = err
		}
		rule, no = r, err
	}
	if unanswered != nil {
		return rule, unanswered
	}
	if rule == nil {
		rule = c.p.find(c.namespace, name{})
		no = refuse(c.p, rule, c.namespace, c.img.ID, "the image has no name on this node that is a reference")
	}
	return rule, no
}

// signed returns nil if the image has the signatures that a rule wants in the repository of a name.
// The image on this node may have several digests, such as those of an index and of one of its
// manifests: one of them has to be signed.
func (c creation) signed(ctx context.Context, r *Rule, n name) error {
	wanted, err := r.wants()
	if err != nil {
		return fmt.Errorf("image %s: rule %q of %s: %s: %w", n.full, r.Name, c.p.File, err.Error(), errdefs.ErrUnavailable)
	}
	targets := map[digest.Digest]ocispec.Descriptor{}
	for _, named := range c.img.Names {
		targets[named.Target.Digest] = named.Target
		if c.g.verified.has(wanted, n, named.Target.Digest) {
			return nil
		}
	}
	var no error
	for _, t := range targets {
		err := c.ask(ctx, r, wanted, n, t)
		if err == nil {
			return nil
		}
		if no == nil || !errdefs.IsPermissionDenied(err) {
			no = err
		}
	}
	if no == nil {
		no = unsigned(c.p, r, n.full, "the image has no name on this node, so that its signatures cannot be asked for")
	}
	return no
}

// ask asks the registry of a name. Calls at the same time for the same share the answer.
func (c creation) ask(ctx context.Context, r *Rule, wanted string, n name, target ocispec.Descriptor) error {
	key := c.p.File + "\n" + r.Name + "\n" + verifiedKey(wanted, n, target.Digest)
	done := c.g.asking.DoChan(key, func() (any, error) {
		return nil, c.g.ask(context.WithoutCancel(ctx), c.p, r, n, target, c.from(n.full)) // it has a time-out
	})
	select {
	case res := <-done:
		return res.Err
	case <-ctx.Done():
		return fmt.Errorf("image %s: ask for its signatures: %w", n.full, ctx.Err())
	}
}
