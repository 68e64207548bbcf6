// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A policy that can be read decides about every image: its last rule is for all of them.
func FuzzPolicy(f *testing.F) {
	f.Add([]byte("[[rules]]\nname = 'all'\naction = 'deny'\nregistries = ['*']\n"), "docker.io/library/a:1", "default")
	f.Add([]byte("[[rules]]\nname = 'a'\naction = 'allow'\nrepositories = ['**/a']\nnamespaces = ['x-*']\n"), "a", "x-1")
	f.Fuzz(func(t *testing.T, b []byte, ref, namespace string) {
		p, err := Parse(b, func(string) ([]byte, error) { return nil, errors.New("there is no such file") })
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%v is not ErrInvalidArgument", err)
			}
			return
		}
		if d, err := p.Decide(namespace, ref); err == nil && (d.Rule == nil || d.Allowed && !d.Rule.Allow) {
			t.Errorf("%+v is the decision about %q in %q", d, ref, namespace)
		}
	})
}

// A file of keys has a key, or is refused.
func FuzzKeys(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	f.Add([]byte("-----BEGIN PUBLIC KEY-----\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		keys, err := parseKeys(b)
		if err == nil && len(keys) == 0 {
			t.Errorf("%q has no key, and no error", b)
		}
		if _, err := identify(keys); err != nil {
			t.Errorf("a key that was read has no identity: %v", err)
		}
	})
}

// served is a registry with one manifest and one blob.
type served struct{ manifest, blob []byte }

func (s served) Manifest(context.Context, string) ([]byte, error) { return s.manifest, nil }

func (s served) Blob(context.Context, string, ocispec.Descriptor) ([]byte, error) { return s.blob, nil }

// Whatever a registry has as the signatures of an image, an image that no key of the rule has signed is
// not verified. The private key is thrown away, so that nothing can be signed with it.
func FuzzSignatures(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	target := digest.FromString("an image")
	f.Add([]byte(`{"layers":[{"mediaType":"`+cosignMedia+`","size":10,"annotations":{"`+cosignAnnotation+`":"MEUCIQ=="}}]}`),
		[]byte(`{"critical":{"image":{"docker-manifest-digest":"`+target.String()+`"},"type":"`+cosignType+`"}}`))
	f.Fuzz(func(t *testing.T, manifest, payload []byte) {
		n := name{repository: "registry.example/a"}
		if err := verifyCosign(t.Context(), served{manifest, payload}, n, target, []crypto.PublicKey{key.Public()}); err == nil {
			t.Errorf("%q with %q is verified", manifest, payload)
		}
		_ = checkPayload(payload, target)
	})
}
