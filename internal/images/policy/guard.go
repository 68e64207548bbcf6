// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/singleflight"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// Config has the settings of a guard.
type Config struct {
	// Verified is the file that remembers which images were verified; "" for none. If it is lost,
	// they are verified again when a container is made from them.
	Verified string
	Logger   *slog.Logger
	// Decided is called with each decision. It may be nil.
	Decided func(Decided)
	// Contain runs a parser of a registry's answers. It may be nil.
	Contain func(what string, f func() error) error
}

// The occasions of decisions.
const (
	AtPull     = "pull"
	AtCreation = "create"
)

// The outcomes of decisions.
const (
	Allowed    = "allowed"
	Refused    = "refused"
	Unanswered = "unanswered" // the rules, a registry or a verifier could not be asked: refused for now
	Unchecked  = "unchecked"  // the rules cannot be used, and all is let in as it is configured
)

// Decided is a decision, for a metric.
type Decided struct {
	At      string // AtPull or AtCreation
	Rule    string // the name of the rule; "" where the rules could not be used
	Outcome string
}

// Guard decides by the rules of a file that hold now. Its methods may be called from any goroutine.
type Guard struct {
	cfg      Config
	verified verified
	asking   singleflight.Group

	mu struct {
		sync.Mutex
		file   string
		open   bool
		policy *Policy // nil: it cannot be used, because of err
		err    error
		read   time.Time // when
		stamps []stamp   // of the files that were read
	}
}

// NewGuard makes a guard that lets in everything, until [Guard.Use] names a file.
func NewGuard(cfg Config) *Guard {
	if cfg.Contain == nil {
		cfg.Contain = func(_ string, f func() error) error { return f() }
	}
	g := &Guard{cfg: cfg}
	g.verified.file = cfg.Verified
	g.verified.log = cfg.Logger
	return g
}

// Use has the rules of a file hold from now on; "" for no rules. The file is read at once, and
// whether it can be used is said in the log. open is the rule while the file cannot be used: all
// images are let in, or none.
func (g *Guard) Use(file string, open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.file, g.mu.open = file, open
	g.mu.policy, g.mu.err, g.mu.stamps = nil, nil, nil
	if file != "" {
		g.readLocked()
	}
}

// racy is how long after its last change a file may change again without looking any different:
// file systems and clocks are coarse.
const racy = 2 * time.Second

// rules returns the rules that hold now. nil and no error: everything is let in; checked is false
// where that is since the rules cannot be used. ErrUnavailable: nothing is.
func (g *Guard) rules() (p *Policy, checked bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.file == "" {
		return nil, true, nil
	}
	if g.changedLocked() {
		g.readLocked()
	}
	switch {
	case g.mu.policy != nil:
		return g.mu.policy, true, nil
	case g.mu.open:
		return nil, false, nil
	}
	// The reason is text, because it is not the request that is invalid.
	return nil, false, fmt.Errorf("the image policy cannot be used, and image.policy_failure is closed: %s: %w", g.mu.err.Error(), errdefs.ErrUnavailable)
}

// changedLocked reports whether the files have changed since they were read, or may have.
func (g *Guard) changedLocked() bool {
	return slices.ContainsFunc(g.mu.stamps, func(s stamp) bool {
		last := s.modified
		if s.changed.After(last) {
			last = s.changed
		}
		return s != stampOf(s.path) || !last.IsZero() && g.mu.read.Sub(last) < racy
	})
}

// readLocked reads the file. It logs changes.
func (g *Guard) readLocked() {
	before, first := g.mu.err, g.mu.stamps == nil
	old := g.mu.stamps
	g.mu.read = time.Now()
	p, stamps, err := load(g.mu.file)
	g.mu.policy, g.mu.stamps, g.mu.err = p, stamps, err
	what := "nothing is pulled and no container is made"
	if g.mu.open {
		what = "every image is let in"
	}
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		g.cfg.Logger.Error("the image policy cannot be used: "+what+" until it can (image.policy_failure)", "err", err)
	case err == nil && (first || before != nil || !slices.Equal(old, stamps)):
		g.cfg.Logger.Info("the image policy was read", "file", g.mu.file, "rules", len(p.Rules))
	}
}

// Broken reports whether there is a file of rules, and whether it can be used. It looks at the file
// again.
func (g *Guard) Broken() (configured bool, err error) {
	_, _, _ = g.rules()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.file != "", g.mu.err
}

// Problems has a sentence for each problem of the rules.
func (g *Guard) Problems() []string {
	_, err := g.Broken()
	if err == nil {
		return nil
	}
	g.mu.Lock()
	open := g.mu.open
	g.mu.Unlock()
	what := "no image is pulled and no container is made until it can"
	if open {
		what = "every image is let in until it can"
	}
	return []string{fmt.Sprintf("the image policy cannot be used, %s: %v", what, err)}
}

func (g *Guard) decided(at string, r *Rule, err error) {
	if g.cfg.Decided == nil {
		return
	}
	d := Decided{At: at, Outcome: Allowed}
	if r != nil {
		d.Rule = r.Name
	}
	switch {
	case err == nil:
	case errdefs.IsPermissionDenied(err):
		d.Outcome = Refused
	default:
		d.Outcome = Unanswered
	}
	g.cfg.Decided(d)
}

// unchecked counts the images that were let in or kept out without rules.
func (g *Guard) unchecked(at string, err error) {
	if g.cfg.Decided == nil {
		return
	}
	d := Decided{At: at, Outcome: Unchecked}
	if err != nil {
		d.Outcome = Unanswered
	}
	g.cfg.Decided(d)
}

// Refusal: a rule does not let an image in. It is ErrPermissionDenied, and the error that
// CRI has for it if signatures are missing.
type Refusal struct {
	Image    string
	Whom     string // is it refused to, in words; "" for all that the rule is for
	Rule     string
	File     string // of the rule
	Why      string
	Unsigned bool // signatures are missing
}

// Error names the image, the rule and the reason.
func (r *Refusal) Error() string {
	return fmt.Sprintf("image %s is refused%s by rule %q of %s: %s", r.Image, r.Whom, r.Rule, r.File, r.Why)
}

// Unwrap returns ErrPermissionDenied.
func (r *Refusal) Unwrap() error { return errdefs.ErrPermissionDenied }

// Is reports whether the refusal is ErrSignatureValidationFailed of CRI.
func (r *Refusal) Is(target error) bool {
	return r.Unsigned && target == crierrors.ErrSignatureValidationFailed
}

func refuse(p *Policy, r *Rule, namespace, image, why string) *Refusal {
	return &Refusal{
		Image: image,
		Whom:  to(namespace),
		Rule:  r.Name,
		File:  p.File,
		Why:   why,
	}
}

// unsigned refuses an image without the signatures that a rule wants. Calls for the same share the
// answer, so that it names no namespace.
func unsigned(p *Policy, r *Rule, image, why string) *Refusal {
	return &Refusal{
		Image:    image,
		Rule:     r.Name,
		File:     p.File,
		Why:      why,
		Unsigned: true,
	}
}

// Pull decides on a pull by the name of the image alone. namespace is that of the pod that the pull
// is for; "" where it is for none. The pull may go on if err is nil; if signed is true, only once
// the target of the name has passed ticket. Equal tickets ask for the same.
func (g *Guard) Pull(namespace, ref string) (ticket Ticket, signed bool, err error) {
	p, checked, err := g.rules()
	if p == nil {
		if !checked {
			g.unchecked(AtPull, err)
		}
		if err != nil {
			err = fmt.Errorf("image %s: %w", ref, err)
		}
		return Ticket{}, false, err
	}
	d, err := p.Decide(namespace, ref)
	if err != nil {
		return Ticket{}, false, err
	}
	if !d.Allowed {
		err = refuse(p, d.Rule, namespace, ref, d.Why)
	}
	if err == nil && d.Rule.Signed() {
		return Ticket{g, p, d.Rule}, true, nil // it counts once the signatures are known
	}
	g.decided(AtPull, d.Rule, err)
	return Ticket{}, false, err
}

// Ticket asks for the signatures that a rule wants of an image that is pulled. It is comparable.
type Ticket struct {
	guard  *Guard
	policy *Policy
	rule   *Rule
}

// Pass returns nil if target, which a name stands for, has the signatures. They are asked for in
// any case, and the result is remembered for the containers that are made from the image.
// ErrPermissionDenied: it has none. ErrUnavailable: that could not be asked.
func (t Ticket) Pass(ctx context.Context, ref string, target ocispec.Descriptor, from Registry) error {
	n, err := parseName(ref)
	if err != nil {
		return badReference(ref, err)
	}
	err = t.guard.ask(ctx, t.policy, t.rule, n, target, from)
	t.guard.decided(AtPull, t.rule, err)
	return err
}

// isUnsigned returns the reason of an error that an image is not signed.
func isUnsigned(err error) (why string, ok bool) {
	var u errUnsigned
	ok = errors.As(err, &u)
	return u.why, ok
}
