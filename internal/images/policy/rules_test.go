// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// noKeys is what a policy without keys reads.
func noKeys(string) ([]byte, error) { return nil, fs.ErrNotExist }

func parse(t *testing.T, text string) *Policy {
	t.Helper()
	p, err := Parse([]byte(text), noKeys)
	if err != nil {
		t.Fatal(err)
	}
	p.File = "policy.toml"
	return p
}

const example = `
[[rules]]
name = "node"
namespaces = ["kube-system", "team-*"]
registries = ["registry.k8s.io"]
action = "allow"

[[rules]]
name = "pinned"
namespaces = ["prod"]
repositories = ["registry.example:5000/prod/*"]
action = "allow"
digest_only = true

[[rules]]
name = "evil"
registries = ["*.evil.example"]
repositories = ["docker.io/evil/**"]
action = "deny"

[[rules]]
name = "library"
repositories = ["docker.io/library/*", "registry.example/**/base"]
action = "allow"

[[rules]]
name = "the rest"
registries = ["*"]
action = "deny"
`

var digestOf = "@sha256:" + strings.Repeat("a", 64)

// PROPERTIES 40: the first rule that is for the namespace and the image decides.
func TestTheFirstRuleForTheNamespaceAndTheImageDecides(t *testing.T) {
	p := parse(t, example)
	for _, tt := range []struct {
		namespace, ref string
		rule           string
		allowed        bool
	}{
		{"kube-system", "registry.k8s.io/pause:3.10", "node", true},
		{"kube-system", "registry.k8s.io/a/b/c" + digestOf, "node", true},
		{"team-a", "registry.k8s.io/pause:3.10", "node", true},
		{"team", "registry.k8s.io/pause:3.10", "the rest", false},
		{"kube-system2", "registry.k8s.io/pause:3.10", "the rest", false},
		{"", "registry.k8s.io/pause:3.10", "the rest", false}, // for no pod: not for pods of kube-system
		{"kube-system", "registry.k8s.io.evil.example/pause", "evil", false},
		{"kube-system", "registry.k8s.io:5000/pause", "the rest", false},

		{"prod", "registry.example:5000/prod/app:1", "pinned", false},
		{"prod", "registry.example:5000/prod/app" + digestOf, "pinned", true},
		{"prod", "registry.example:5000/prod/app:1" + digestOf, "pinned", true},
		{"prod", "registry.example:5000/prod/app/more" + digestOf, "the rest", false}, // * stops at a slash
		{"prod", "registry.example/prod/app" + digestOf, "the rest", false},
		{"test", "registry.example:5000/prod/app" + digestOf, "the rest", false},

		{"", "busybox", "library", true},
		{"x", "library/busybox", "library", true},
		{"x", "docker.io/busybox:1", "library", true},
		{"x", "index.docker.io/library/busybox", "library", true},
		{"x", "evil/busybox", "evil", false},
		{"x", "evil/a/b", "evil", false},
		{"x", "library", "library", true}, // docker.io/library/library
		{"x", "docker.io/libraryx/busybox", "the rest", false},
		{"x", "registry.example/base", "the rest", false},
		{"x", "registry.example/a/base", "library", true},
		{"x", "registry.example/a/b/base:1", "library", true},
		{"x", "a.evil.example/base", "evil", false},
		// Another spelling of a host is the same host.
		{"x", "A.Evil.EXAMPLE/base", "evil", false},
		{"x", "a.evil.example:443/base", "evil", false},
		{"x", "A.Evil.EXAMPLE:443/base", "evil", false},
		{"kube-system", "REGISTRY.k8s.io:443/pause", "node", true},
	} {
		d, err := p.Decide(tt.namespace, tt.ref)
		if err != nil || d.Rule.Name != tt.rule || d.Allowed != tt.allowed || (d.Why == "") != d.Allowed {
			t.Errorf("%q %s: %+v by %+v, %v; want %q, allowed %v", tt.namespace, tt.ref, d, d.Rule, err, tt.rule, tt.allowed)
		}
	}
	pods := parse(t, "[[rules]]\nname='pods'\nnamespaces=['*']\nregistries=['*']\naction='allow'\n"+rest)
	for namespace, want := range map[string]bool{"x": true, "": false} {
		if d, err := pods.Decide(namespace, "busybox"); err != nil || d.Allowed != want {
			t.Errorf("the rule for all namespaces, in %q: %+v %v", namespace, d, err)
		}
	}
	if _, err := p.Decide("", "x.example/UPPER"); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "x.example/UPPER") {
		t.Errorf("%v", err)
	}
}

const rest = "\n[[rules]]\nname='rest'\nregistries=['*']\naction='deny'\n"

// A policy that says something else than whoever wrote it may have meant is refused, with the place.
func TestAPolicyIsReadStrictly(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", "no rules"},
		{"# nothing\n", "no rules"},
		{"[[rules]]\nname='a'\nregistry=['*']\naction='allow'\n" + rest, "line 3: rules.registry is not a key"},
		{"default='allow'\n" + rest, "line 1: default is not a key"},
		{"[[rules]]\nname='a'\nregistries=['x.example'\naction='allow'", "line 4"},
		{"[[rules]]\nname='a'\nregistries='x.example'\naction='allow'", "line 3"},
		{"[[rules]]\nname='a'\nregistries=['x.example']\naction='permit'" + rest, `line 4, column 8: `},
		{"[[rules]]\nregistries=['x.example']\naction='allow'" + rest, "no name"},
		{"[[rules]]\nname='" + strings.Repeat("x", 65) + "'\nregistries=['x.example']\naction='allow'" + rest, "64 bytes"},
		{"[[rules]]\nname=\"a\\nb\"\nregistries=['x.example']\naction='allow'" + rest, "printed"},
		{"[[rules]]\nname='a'\nregistries=['x.example']" + rest, `rule 1 "a": action is missing`},
		{"[[rules]]\nname='a'\naction='allow'" + rest, `rule 1 "a": it names neither registries nor repositories`},
		{"[[rules]]\nname='a'\nnamespaces=[]\nregistries=['x.example']\naction='allow'" + rest, "namespaces is empty"},
		{"[[rules]]\nname='a'\nregistries=['x.example']\naction='deny'\ndigest_only=true" + rest, "it denies images"},
		{"[[rules]]\nname='a'\nregistries=['x.example']\naction='deny'\nsignatures='none'" + rest, "it denies images"},
		{"[[rules]]\nname='a'\nregistries=['x.example']\naction='allow'\nsignatures='yes'" + rest, "line 5"},
		{"[[rules]]\nname='a'\nregistries=['x.example']\naction='allow'\nsignatures='required'" + rest, "neither keys nor verifier_dir"},
		{"[[rules]]\nname='a'\nregistries=['x.example']\naction='allow'\nsignatures='required'\nkeys=[]" + rest, "neither keys nor verifier_dir"},
		{"[[rules]]\nname='a'\nregistries=['x.example']\naction='allow'\nverifier_dir='/x'" + rest, "signatures is not required"},
		{"[[rules]]\nname='a'\nregistries=['x.example']\naction='allow'\nsignatures='none'\nkeys=['/x']" + rest, "signatures is not required"},
		{"[[rules]]\nname='a'\nregistries=['x.example']\naction='allow'\nsignatures='required'\nkeys=['x']" + rest, "line 6"},
		{"[[rules]]\nname='a'\nregistries=['x.example']\naction='allow'\nsignatures='required'\nkeys=['/x']" + rest, "keys: /x: file does not exist"},
		{"[[rules]]\nname='a'\nregistries=['x.example']\naction='allow'\n[[rules]]\nname='a'\nregistries=['*']\naction='deny'", "an earlier rule has that name"},
		{"verifier_timeout='0s'" + rest, "line 1"},
		{"verifier_timeout='2m'" + rest, "line 1"},
		{"verifier_timeout=3" + rest, "missing unit"},
		// Patterns that match no name as names are compared.
		{"[[rules]]\nname='a'\nregistries=['x.example/app']\naction='allow'" + rest, "line 3"},
		{"[[rules]]\nname='a'\nregistries=['']\naction='allow'" + rest, "line 3"},
		{"[[rules]]\nname='a'\nregistries=['index.docker.io']\naction='allow'" + rest, "write docker.io"},
		{"[[rules]]\nname='a'\nrepositories=['busybox']\naction='allow'" + rest, "docker.io/library/busybox"},
		{"[[rules]]\nname='a'\nrepositories=['library/busybox']\naction='allow'" + rest, "docker.io/library/busybox"},
		{"[[rules]]\nname='a'\nrepositories=['docker.io/busybox']\naction='allow'" + rest, "docker.io/library/busybox in full"},
		{"[[rules]]\nname='a'\nrepositories=['registry-1.docker.io/library/busybox']\naction='allow'" + rest, "write docker.io"},
		{"[[rules]]\nname='a'\nrepositories=['x.example/app:1']\naction='allow'" + rest, "a tag or a digest"},
		{"[[rules]]\nname='a'\nrepositories=['x.example/app@sha256:1']\naction='allow'" + rest, "a tag or a digest"},
		{"[[rules]]\nname='a'\nrepositories=['x.example/']\naction='allow'" + rest, "/**"},
		{"[[rules]]\nname='a'\nrepositories=['x.example/App']\naction='allow'" + rest, "upper-case"},
		{"[[rules]]\nname='a'\nrepositories=['x.example/a b']\naction='allow'" + rest, "a space"},
		{"[[rules]]\nname='a'\nrepositories=['x.example/***']\naction='allow'" + rest, "three asterisks"},
		{"[[rules]]\nname='a'\nnamespaces=['a/b']\nregistries=['x.example']\naction='allow'" + rest, "a slash"},
		// What is left when a file breaks off is never a policy.
		{"[[rules]]\nname='a'\nregistries=['x.example']\naction='allow'", "the last and not for every image"},
		{"[[rules]]\nname='a'\nnamespaces=['n']\nregistries=['*']\naction='allow'", "the last and not for every image"},
		{rest + rest[:len("\n[[rules]]\nname=")] + "'b'\nregistries=['x.example']\naction='allow'", `rule 1 "rest": it is for every image`},
	} {
		p, err := Parse([]byte(tt.text), noKeys)
		if p != nil || !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s:\n%v, want %q", tt.text, err, tt.want)
		}
	}
	many := strings.Repeat("[[rules]]\n", maxRules+1)
	if _, err := Parse([]byte(many), noKeys); err == nil || !strings.Contains(err.Error(), "more than 1000") {
		t.Errorf("%v", err)
	}
	broken := errors.New("broken")
	if _, err := Parse([]byte("[[rules]]\nname='a'\nregistries=['x.example']\naction='allow'\nsignatures='required'\nkeys=['/x']"+rest),
		func(string) ([]byte, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

// PROPERTIES 40: whoever reads a file like this one while it is being written finds no policy, or one
// that allows no more.
func TestAFileThatBreaksOffAllowsNoMore(t *testing.T) {
	whole := parse(t, example)
	refs := []string{"registry.k8s.io/a", "registry.example:5000/prod/a", "registry.example:5000/prod/a" + digestOf, "evil/a", "busybox", "x.evil.example/a", "other.example/a"}
	for n := range example {
		p, err := Parse([]byte(example[:n]), noKeys)
		if err != nil {
			continue
		}
		for _, namespace := range []string{"", "kube-system", "prod", "x"} {
			for _, ref := range refs {
				before, err := whole.Decide(namespace, ref)
				if err != nil {
					t.Fatal(err)
				}
				if now, err := p.Decide(namespace, ref); err != nil || now.Allowed && !before.Allowed {
					t.Errorf("the first %d bytes allow %s in %q: %v", n, ref, namespace, err)
				}
			}
		}
	}
}

func TestPatterns(t *testing.T) {
	for _, tt := range []struct {
		pattern, text string
		want          bool
	}{
		{"a*c", "abc", true},
		{"a*c", "ac", true},
		{"a*c", "abcd", false},
		{"a*c", "a/c", false},
		{"a**c", "a/b/c", true},
		{"a.c", "abc", false},
		{"*", "", true},
		{"*", "a/b", false},
		{"**", "a/b", true},
		{"(a|b)+[c]", "(a|b)+[c]", true},
		{"(a|b)+[c]", "ac", false},
		{"a", "a\nb", false},
	} {
		p, err := newPattern(tt.pattern)
		if err != nil || p.matches(tt.text) != tt.want {
			t.Errorf("%s %q: %v", tt.pattern, tt.text, err)
		}
	}
	if _, err := newPattern(strings.Repeat("a", maxPattern+1)); err == nil {
		t.Error("a pattern of any length was taken")
	}
}
