// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
)

// Policy is a list of rules, of which the last is for every image. It never changes.
type Policy struct {
	File            string // where it was read from
	Rules           []*Rule
	VerifierTimeout time.Duration // of each program
}

// Rule decides on the images of some repositories in some namespaces.
type Rule struct {
	Name       string
	Allow      bool
	DigestOnly bool
	// Keys are those of which one has to have signed the image, and VerifierDir the directory of
	// the programs which all have to accept it. Without both no signature is asked for.
	Keys        []crypto.PublicKey
	VerifierDir string
	// Restore lets containers be restored from checkpoints in these images, as from an archive of
	// root's on this node.
	Restore bool

	namespaces   []namespacePattern // none: for every namespace, and where there is none
	registries   []registryPattern
	repositories []repositoryPattern
	identity     string // of the keys
}

// Signed reports whether the rule lets in no image without a signature.
func (r *Rule) Signed() bool { return len(r.Keys) > 0 || r.VerifierDir != "" }

// For describes in words the namespaces and images of the rule.
func (r *Rule) For() string {
	var what []string
	for _, p := range r.registries {
		what = append(what, p.text)
	}
	for _, p := range r.repositories {
		what = append(what, p.text)
	}
	text := strings.Join(what, ", ")
	if len(r.namespaces) == 0 {
		return text
	}
	var where []string
	for _, p := range r.namespaces {
		where = append(where, p.text)
	}
	return text + " in " + strings.Join(where, ", ")
}

// everything reports whether the rule is for every image in every namespace.
func (r *Rule) everything() bool {
	return len(r.namespaces) == 0 &&
		(slices.ContainsFunc(r.registries, func(p registryPattern) bool { return strings.Trim(p.text, "*") == "" }))
}

// is reports whether the rule is for an image.
func (r *Rule) is(namespace string, n name) bool {
	if len(r.namespaces) > 0 && (namespace == "" || !slices.ContainsFunc(r.namespaces, func(p namespacePattern) bool { return p.matches(namespace) })) {
		return false
	}
	return slices.ContainsFunc(r.registries, func(p registryPattern) bool { return p.matches(n.registry) }) ||
		n.path != "" && slices.ContainsFunc(r.repositories, func(p repositoryPattern) bool { return p.matches(n.registry + "/" + n.path) })
}

// name is the name of an image as rules compare it. The zero value is an image without a name.
type name struct {
	full           string // with its tag or digest
	repository     string // without, as its registry is asked
	registry, path string // as they are compared
	digested       bool   // it has a digest
}

// parseName reads a reference, which may be as users write it.
func parseName(ref string) (name, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return name{}, err
	}
	_, digested := named.(reference.Digested)
	return name{
		full:       named.String(),
		repository: named.Name(),
		registry:   host(reference.Domain(named)),
		path:       reference.Path(named),
		digested:   digested,
	}, nil
}

// Decision is the answer of the rules to an image by its name.
type Decision struct {
	Rule    *Rule
	Allowed bool   // where Rule.Signed, only once its signatures were verified
	Why     string // it is not allowed
}

// find returns the rule that decides. The last rule is for everything.
func (p *Policy) find(namespace string, n name) *Rule {
	for _, r := range p.Rules {
		if r.is(namespace, n) {
			return r
		}
	}
	return p.Rules[len(p.Rules)-1]
}

// Decide finds the rule that decides on an image that a pod of a namespace asks for, and how.
// namespace is "" where the image is for no pod: rules for some namespaces are not for it.
// ErrInvalidArgument: ref is not a reference.
func (p *Policy) Decide(namespace, ref string) (Decision, error) {
	n, err := parseName(ref)
	if err != nil {
		return Decision{}, badReference(ref, err)
	}
	return p.decide(namespace, n), nil
}

func (p *Policy) decide(namespace string, n name) Decision {
	r := p.find(namespace, n)
	switch {
	case !r.Allow:
		return Decision{Rule: r, Why: "it denies the image"}
	case r.DigestOnly && !n.digested:
		return Decision{Rule: r, Why: "it allows the image by its digest alone, as in " + n.registry + "/" + n.path + "@sha256:…"}
	}
	return Decision{Rule: r, Allowed: true}
}

// to names the pods to which an image is refused, in words.
func to(namespace string) string {
	if namespace == "" {
		return " to whoever asks for no pod"
	}
	return " to namespace " + namespace
}
