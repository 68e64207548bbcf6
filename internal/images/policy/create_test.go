// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/elliptic"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
)

const creations = `
[[rules]]
name = "digests"
namespaces = ["prod"]
registries = ["good.example"]
action = "allow"
digest_only = true

[[rules]]
name = "test"
namespaces = ["test"]
registries = ["good.example", "test.example"]
action = "allow"

[[rules]]
name = "none"
registries = ["*"]
action = "deny"
`

// PROPERTIES 40: the image of a container is judged by what the pod calls it, and by what it is called
// on this node, however it came here.
func TestTheImageOfAContainerIsJudgedByItsNames(t *testing.T) {
	const id = "sha256:deadbeef00000000000000000000000000000000000000000000000000000000"
	good := []string{"good.example/app:1", "good.example/app" + digestOf}
	tested := []string{"test.example/app:1", "test.example/app" + digestOf}
	for _, tt := range []struct {
		what, namespace, asked string
		names                  []string
		rule                   string // that refuses; "" if it is allowed
	}{
		{"by its tag", "test", "good.example/app:1", good, ""},
		{"by its digest", "prod", "good.example/app" + digestOf, good, ""},
		{"by its tag, where a digest is wanted", "prod", "good.example/app:1", good, "digests"},
		{"by its ID", "prod", id, good, ""},
		{"by the beginning of its ID", "prod", "deadbeef", good, ""},
		{"by the beginning of its ID", "prod", "sha256:dead", good, ""},
		{"without saying", "prod", "", good, ""},
		{"the ID of what is not allowed", "prod", id, tested, "none"},
		{"the beginning of that ID", "prod", "deadbeef", tested, "none"},
		{"what is not allowed, without saying", "prod", "", tested, "none"},
		{"what is not allowed, by its digest", "prod", "test.example/app" + digestOf, tested, "none"},
		{"an allowed name for what is not allowed", "prod", "good.example/app" + digestOf, tested, "none"},
		{"a name that is not allowed for what is", "prod", "test.example/app" + digestOf, good, "none"},
		{"what is known by both names, by the allowed one", "prod", "good.example/app" + digestOf, append(tested[:2:2], good...), ""},
		{"what is known by both names, by the other one", "prod", "test.example/app:1", append(tested[:2:2], good...), "none"},
		{"what is known by both names, by its ID", "prod", id, append(tested[:2:2], good...), ""},
		{"in a namespace without a rule", "x", "good.example/app:1", good, "none"},
		{"without a namespace", "", "good.example/app:1", good, "none"},
		{"what has no name", "test", id, nil, "none"},
		{"what has no name that is one", "test", id, []string{"import-2024-01-01@sha256:xyz"}, "none"},
		{"a name that looks like the ID of another", "test", "beef", good, "none"}, // docker.io/library/beef
	} {
		g := newGuarded(t)
		g.write(creations, time.Hour)
		g.Use(g.file, false)
		img := Image{ID: id, Asked: tt.asked}
		for _, n := range tt.names {
			img.Names = append(img.Names, Named{n, ocispec.Descriptor{Digest: digest.FromString("image")}})
		}
		err := g.Create(t.Context(), tt.namespace, img, nil)
		var no *Refusal
		if (tt.rule == "") != (err == nil) || err != nil && (!errors.As(err, &no) || no.Rule != tt.rule || !errdefs.IsPermissionDenied(err)) {
			t.Errorf("%s: %v, want %q", tt.what, err, tt.rule)
		}
		if got := g.decisions(); len(got) != 1 || tt.rule != "" && got[0] != `create "`+tt.rule+`" refused` || tt.rule == "" && !strings.HasSuffix(got[0], "allowed") {
			t.Errorf("%s: %q", tt.what, got)
		}
	}
	g := newGuarded(t)
	g.write(creations, time.Hour)
	g.Use(g.file, false)
	if err := g.Create(t.Context(), "test", Image{ID: id, Asked: "good.example/A"}, nil); !errdefs.IsInvalidArgument(err) {
		t.Errorf("%v", err)
	}
}

// PROPERTIES 40: an image that came without a pull is made into no container before it is verified,
// and one signed digest of it is enough.
func TestSignaturesAreWantedOfWhatIsHere(t *testing.T) {
	g := newGuarded(t)
	key := ecdsaKey(t, elliptic.P256())
	g.signedBy(g.keyFile(), publicPEM(t, key))
	reg := newRegistry()
	index, manifest := digest.FromString("index"), digest.FromString("manifest")
	img := Image{
		ID:    "sha256:1",
		Asked: "x.example/app:1",
		Names: []Named{
			{"x.example/app:1", ocispec.Descriptor{Digest: index}},
			{"x.example/app@" + manifest.String(), ocispec.Descriptor{Digest: manifest}},
			{"x.example/moved@" + index.String(), ocispec.Descriptor{Digest: index}},
		},
	}
	create := func(img Image) error {
		return g.Create(t.Context(), "n", img, func(string) Registry { return reg })
	}
	byID := img
	byID.Asked = ""
	for _, i := range []Image{img, byID} {
		if err := create(i); !errors.Is(err, crierrors.ErrSignatureValidationFailed) {
			t.Errorf("unsigned: %v", err)
		}
	}
	// One name is not signed, and of the other that is not known: it is not refused for good.
	away := newRegistry()
	away.err = errors.New("connection refused")
	for _, first := range []string{"app", "moved"} {
		err := g.Create(t.Context(), "n", byID, func(ref string) Registry {
			if strings.Contains(ref, first) {
				return away
			}
			return reg
		})
		if !errdefs.IsUnavailable(err) {
			t.Errorf("the registry of %s is away: %v", first, err)
		}
	}
	// A signature in the repository of another name is one of that name.
	reg.add("x.example/moved", index, payloadOf(index), sign(t, key, payloadOf(index)))
	if err := create(byID); err != nil {
		t.Errorf("signed by another of its names: %v", err)
	}
	if err := create(img); !errdefs.IsPermissionDenied(err) {
		t.Errorf("the name that the pod asks for is not signed: %v", err)
	}
	reg.err = errors.New("connection refused")
	if err := create(img); !errdefs.IsUnavailable(err) {
		t.Errorf("away: %v", err)
	}
	reg.err = nil
	reg.add("x.example/app", manifest, payloadOf(manifest), sign(t, key, payloadOf(manifest)))
	if err := create(img); err != nil {
		t.Errorf("one of its digests is signed: %v", err)
	}
	reg.err = errors.New("connection refused")
	if err := create(img); err != nil {
		t.Errorf("it was verified: %v", err)
	}
	nameless := Image{ID: "sha256:1", Asked: "x.example/app:1"}
	if err := create(nameless); !errdefs.IsPermissionDenied(err) {
		t.Errorf("%v", err)
	}
	g.write("[[rules]]\nname='all'\nregistries=['*']\naction='allow'\nsignatures='required'\n"+g.keyFile(), time.Hour)
	nameless.Asked = ""
	if err := create(nameless); !errors.Is(err, crierrors.ErrSignatureValidationFailed) {
		t.Errorf("%v", err)
	}
}

// PROPERTIES 32: a checkpoint in an image is restored where a rule says so alone: by the name that the
// pod asks for and by one that the image has here. Without rules that can be used nothing is.
func TestACheckpointInAnImageIsRestoredWhereARuleSaysSo(t *testing.T) {
	const rules = `
[[rules]]
name = "checkpoints"
namespaces = ["lab"]
repositories = ["good.example/checkpoints/**"]
action = "allow"
restore = true

[[rules]]
name = "rest"
registries = ["*"]
action = "allow"
`
	const id = "sha256:deadbeef00000000000000000000000000000000000000000000000000000000"
	ours, other := "good.example/checkpoints/c:1", "evil.example/c:1"
	g := newGuarded(t)
	for _, open := range []bool{false, true} {
		g.Use("", open)
		if err := g.Restore(t.Context(), "lab", Image{ID: id, Asked: ours}, nil); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "restore = true") {
			t.Errorf("without rules: %v", err)
		}
		g.write(`nonsense`, time.Hour)
		g.Use(g.file, open)
		if err := g.Restore(t.Context(), "lab", Image{ID: id, Asked: ours}, nil); !errdefs.IsUnavailable(err) {
			t.Errorf("with rules that are broken: %v", err)
		}
	}
	g.write(rules, time.Hour)
	g.Use(g.file, false)
	for _, tt := range []struct {
		namespace, asked string
		names            []string
		ok               bool
	}{
		{"lab", ours, []string{ours}, true},
		{"lab", id, []string{ours}, true},
		{"lab", id, []string{other, ours}, true}, // the same bytes
		{"prod", ours, []string{ours}, false},
		{"lab", ours, []string{other}, false},
		{"lab", other, []string{other, ours}, false},
		{"lab", id, []string{other}, false},
		{"lab", id, nil, false},
	} {
		img := Image{ID: id, Asked: tt.asked}
		for _, n := range tt.names {
			img.Names = append(img.Names, Named{n, ocispec.Descriptor{Digest: digest.FromString("image")}})
		}
		err := g.Restore(t.Context(), tt.namespace, img, nil)
		var no *Refusal
		if tt.ok != (err == nil) || err != nil && (!errors.As(err, &no) || no.Rule != "rest" || !strings.Contains(err.Error(), "restore = true")) {
			t.Errorf("%+v: %v", tt, err)
		}
		if err := g.Create(t.Context(), tt.namespace, img, nil); err != nil {
			t.Errorf("%+v: as an image: %v", tt, err)
		}
	}
	for _, bad := range []string{strings.ReplaceAll(rules, `"allow"`, `"deny"`), strings.Replace(rules, "restore = true", "restore = 1", 1)} {
		if _, err := Parse([]byte(bad), noKeys); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v", err)
		}
	}
}
