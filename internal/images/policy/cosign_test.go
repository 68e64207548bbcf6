// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// registry is one in memory: manifests by reference, blobs by digest.
type registry struct {
	mu        sync.Mutex
	manifests map[string][]byte
	blobs     map[digest.Digest][]byte
	err       error // of each question
	blobErr   error
	asked     int
	hang      chan struct{} // closed to let questions be answered; nil: at once
}

func newRegistry() *registry {
	return &registry{manifests: map[string][]byte{}, blobs: map[digest.Digest][]byte{}}
}

func (r *registry) Manifest(ctx context.Context, ref string) ([]byte, error) {
	r.mu.Lock()
	r.asked++
	hang := r.hang
	r.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return nil, r.err
	}
	if b, ok := r.manifests[ref]; ok {
		return b, nil
	}
	return nil, fmt.Errorf("%s: %w", ref, errdefs.ErrNotFound)
}

func (r *registry) Blob(_ context.Context, _ string, desc ocispec.Descriptor) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.blobErr != nil {
		return nil, r.blobErr
	}
	return r.blobs[desc.Digest], nil
}

// add adds a signature of a digest to those of a repository.
func (r *registry) add(repository string, target digest.Digest, payload, signature []byte, change ...func(*ocispec.Descriptor)) {
	ref := repository + ":" + cosignTag(target)
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}}
	_ = json.Unmarshal(r.manifests[ref], &m)
	desc := ocispec.Descriptor{
		MediaType:   cosignMedia,
		Digest:      digest.FromBytes(payload),
		Size:        int64(len(payload)),
		Annotations: map[string]string{cosignAnnotation: base64.StdEncoding.EncodeToString(signature)},
	}
	for _, f := range change {
		f(&desc)
	}
	m.Layers = append(m.Layers, desc)
	r.manifests[ref], _ = json.Marshal(m)
	r.blobs[digest.FromBytes(payload)] = payload
}

// payloadOf is what cosign signs of a digest.
func payloadOf(d digest.Digest) []byte {
	return fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":"x"},"image":{"docker-manifest-digest":"%s"},"type":"cosign container image signature"},"optional":null}`, d)
}

func ecdsaKey(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func sign(t *testing.T, key crypto.Signer, payload []byte) []byte {
	t.Helper()
	var opts crypto.SignerOpts = crypto.SHA256
	sum := sha256.Sum256(payload)
	what := sum[:]
	if _, ok := key.(ed25519.PrivateKey); ok {
		opts, what = crypto.Hash(0), payload
	}
	b, err := key.Sign(rand.Reader, what, opts)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func publicPEM(t *testing.T, keys ...crypto.Signer) []byte {
	t.Helper()
	var all []byte
	for _, k := range keys {
		b, err := x509.MarshalPKIXPublicKey(k.Public())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: b})...)
	}
	return all
}

func TestASignatureIsVerifiedWithEachKindOfKey(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	target := digest.FromString("image")
	n, err := parseName("x.example/app:1")
	if err != nil {
		t.Fatal(err)
	}
	signers := []crypto.Signer{ecdsaKey(t, elliptic.P256()), ecdsaKey(t, elliptic.P384()), rsaKey, ed}
	for i, key := range signers {
		reg := newRegistry()
		reg.add("x.example/app", target, payloadOf(target), sign(t, key, payloadOf(target)))
		for j, other := range signers {
			keys, err := parseKeys(publicPEM(t, other))
			if err != nil {
				t.Fatal(err)
			}
			err = verifyCosign(t.Context(), reg, n, target, keys)
			if why, unsigned := isUnsigned(err); (i == j) != (err == nil) || i != j && (!unsigned || !strings.Contains(why, "another key")) {
				t.Errorf("signed by %T, verified by %T: %v", key, other, err)
			}
		}
		all, err := parseKeys(publicPEM(t, signers...))
		if err != nil || len(all) != len(signers) {
			t.Fatalf("%d keys, %v", len(all), err)
		}
		if err := verifyCosign(t.Context(), reg, n, target, all); err != nil {
			t.Errorf("any of several keys: %v", err)
		}
	}
}

// A key, a payload and a signature that sigstore's own libraries have written, with which cosign signs.
func TestASignatureOfSigstoresIsVerified(t *testing.T) {
	const key = `-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEc/n6F7FINNkmd3NsRnpm/QKnFDag
EI5JGQuZocAq6mUVcOjZdexizl/bi/BER10aPu36kI1Webo7zxmPPps4iA==
-----END PUBLIC KEY-----
`
	const payload = `{"critical":{"identity":{"docker-reference":"registry.example/team/app"},"image":{"docker-manifest-digest":"sha256:6105d6cc76af400325e94d588ce511be5bfdbb73b437dc51eca43917d7a43e3d"},"type":"cosign container image signature"},"optional":null}`
	const signature = `MEUCIQCgd59g8f9Rzo0HbVphLoTxL43Su+X0OgQ5pn5+qHPgSAIgfM3lQRrA15zjPaECF52MVNh75oRp8Q7C+wIf4FlF/Ns=`
	const target = digest.Digest("sha256:6105d6cc76af400325e94d588ce511be5bfdbb73b437dc51eca43917d7a43e3d")
	keys, err := parseKeys([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	b, err := base64.StdEncoding.DecodeString(signature)
	if err != nil {
		t.Fatal(err)
	}
	n, err := parseName("registry.example/team/app:1")
	if err != nil {
		t.Fatal(err)
	}
	reg := newRegistry()
	reg.add("registry.example/team/app", target, []byte(payload), b)
	if err := verifyCosign(t.Context(), reg, n, target, keys); err != nil {
		t.Error(err)
	}
}

// PROPERTIES 40: what is not a signature of this digest by one of the keys is none, and what the
// registry does not answer is not the answer that there is none.
func TestOnlyASignatureOfThisDigestByAKeyOfTheRuleCounts(t *testing.T) {
	key, stranger := ecdsaKey(t, elliptic.P256()), ecdsaKey(t, elliptic.P256())
	keys, err := parseKeys(publicPEM(t, key))
	if err != nil {
		t.Fatal(err)
	}
	target, other := digest.FromString("image"), digest.FromString("other")
	const repo = "x.example/app"
	n, err := parseName(repo + ":1")
	if err != nil {
		t.Fatal(err)
	}
	good := payloadOf(target)
	foreign := []byte(strings.Replace(string(good), "cosign container", "atomic container", 1))
	away := errors.New("connection refused")
	for what, tt := range map[string]struct {
		fill func(r *registry)
		want string // "": verified
		away bool   // that could not be asked
	}{
		"signed":           {func(r *registry) { r.add(repo, target, good, sign(t, key, good)) }, "", false},
		"nothing":          {func(*registry) {}, "has no signature of it, which would be x.example/app:sha256-", false},
		"signed elsewhere": {func(r *registry) { r.add("x.example/other", target, good, sign(t, key, good)) }, "no signature", false},
		"by a stranger":    {func(r *registry) { r.add(repo, target, good, sign(t, stranger, good)) }, "another key", false},
		"by a stranger and signed": {func(r *registry) {
			r.add(repo, target, good, sign(t, stranger, good))
			r.add(repo, target, good, sign(t, key, good))
		}, "", false},
		"another image": {func(r *registry) {
			r.add(repo, target, payloadOf(other), sign(t, key, payloadOf(other)))
		}, "another image", false},
		"another form":       {func(r *registry) { r.add(repo, target, foreign, sign(t, key, foreign)) }, "of the type", false},
		"not JSON":           {func(r *registry) { r.add(repo, target, []byte("x"), sign(t, key, []byte("x"))) }, "not JSON", false},
		"no signature in it": {func(r *registry) { r.add(repo, target, good, nil) }, "a form", false},
		"not base64": {func(r *registry) {
			r.add(repo, target, good, sign(t, key, good), func(d *ocispec.Descriptor) { d.Annotations[cosignAnnotation] = "%" })
		}, "a form", false},
		"another media type": {func(r *registry) {
			r.add(repo, target, good, sign(t, key, good), func(d *ocispec.Descriptor) { d.MediaType = "x" })
		}, "a form", false},
		"huge": {func(r *registry) {
			r.add(repo, target, good, sign(t, key, good), func(d *ocispec.Descriptor) { d.Size = maxPayload + 1 })
		}, "a form", false},
		"not a manifest": {func(r *registry) { r.manifests[repo+":"+cosignTag(target)] = []byte("[") }, "not a manifest", false},
		"empty":          {func(r *registry) { r.manifests[repo+":"+cosignTag(target)] = []byte("{}") }, "there are none", false},
		"away":           {func(r *registry) { r.err = away }, "connection refused", true},
		"away meanwhile": {func(r *registry) {
			r.add(repo, target, good, sign(t, key, good))
			r.blobErr = away
		}, "connection refused", true},
	} {
		reg := newRegistry()
		tt.fill(reg)
		err := verifyCosign(t.Context(), reg, n, target, keys)
		_, unsigned := isUnsigned(err)
		if (tt.want == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), tt.want) || unsigned == tt.away || tt.away && !errors.Is(err, away)) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestFilesOfKeysAreReadStrictly(t *testing.T) {
	weak, err := x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 1023), E: 65537})
	if err != nil {
		t.Fatal(err)
	}
	good := string(publicPEM(t, ecdsaKey(t, elliptic.P256())))
	for _, tt := range []struct{ text, want string }{
		{"", "no key"},
		{"\n", "no key"},
		{good + "x", "not a key"},
		{"x", "not a key"},
		{strings.ReplaceAll(good, "PUBLIC", "PRIVATE"), "PRIVATE KEY"},
		{"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "asn1"},
		{string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: weak})), "1024 bits"},
	} {
		if keys, err := parseKeys([]byte(tt.text)); keys != nil || err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v", tt.text, err)
		}
	}
	if keys, err := parseKeys([]byte("# of the release team\n" + good + "\n")); len(keys) != 1 || err != nil {
		t.Errorf("%v %v", keys, err)
	}
}
