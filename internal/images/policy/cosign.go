// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Registry reads small documents of the repository of an image.
type Registry interface {
	// Manifest reads the manifest that a reference stands for. ErrNotFound: the registry says that
	// there is none.
	Manifest(ctx context.Context, ref string) ([]byte, error)
	// Blob reads a blob of the repository of ref, of at most desc.Size bytes, and has checked its
	// digest.
	Blob(ctx context.Context, ref string, desc ocispec.Descriptor) ([]byte, error)
}

// The format of cosign: the signatures of an image are the layers of a manifest, whose tag is made
// of the digest of the image. A layer is the signed payload, and its annotation the signature.
const (
	cosignMedia      = "application/vnd.dev.cosign.simplesigning.v1+json"
	cosignAnnotation = "dev.cosignproject.cosign/signature"
	cosignType       = "cosign container image signature"

	maxSignatures = 64       // of an image that are looked at
	maxPayload    = 64 << 10 // of a signed payload, in bytes
)

// cosignTag returns the tag of the signatures of a digest.
func cosignTag(d digest.Digest) string { return d.Algorithm().String() + "-" + d.Encoded() + ".sig" }

// errUnsigned says that the registry has answered, and that the image is not signed as it has to
// be.
type errUnsigned struct{ why string }

// Error gives the reason.
func (e errUnsigned) Error() string { return e.why }

// verifyCosign returns nil if the repository of an image has a signature of its digest by one of
// the keys. errUnsigned: it has none. Any other error: that could not be asked.
func verifyCosign(ctx context.Context, from Registry, n name, target digest.Digest, keys []crypto.PublicKey) error {
	ref := n.repository + ":" + cosignTag(target)
	b, err := from.Manifest(ctx, ref)
	if errdefs.IsNotFound(err) {
		return errUnsigned{fmt.Sprintf("its registry has no signature of it, which would be %s", ref)}
	}
	if err != nil {
		return fmt.Errorf("read the signatures %s: %w", ref, err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return errUnsigned{fmt.Sprintf("what its registry has as the signatures %s is not a manifest: %v", ref, err)}
	}
	var unread error
	last := "there are none"
	for _, l := range m.Layers[:min(len(m.Layers), maxSignatures)] {
		signature, err := base64.StdEncoding.DecodeString(l.Annotations[cosignAnnotation])
		if l.MediaType != cosignMedia || err != nil || len(signature) == 0 || l.Size > maxPayload {
			last = "one has a form that berth does not read"
			continue
		}
		payload, err := from.Blob(ctx, ref, l)
		if err != nil {
			unread = fmt.Errorf("read a signature of %s: %w", ref, err)
			continue
		}
		if !slices.ContainsFunc(keys, func(k crypto.PublicKey) bool { return verify(k, payload, signature) }) {
			last = "one is by another key"
			continue
		}
		if err := checkPayload(payload, target); err != nil {
			last = err.Error()
			continue
		}
		return nil
	}
	if unread != nil {
		return unread
	}
	return errUnsigned{fmt.Sprintf("none of the %d signatures %s is by a key of the rule: %s", len(m.Layers), ref, last)}
}

// checkPayload returns an error if the signed payload is not the digest of an image, or not that
// one.
func checkPayload(payload []byte, target digest.Digest) error {
	var p struct {
		Critical struct {
			Image struct {
				Digest string `json:"docker-manifest-digest"`
			} `json:"image"`
			Type string `json:"type"`
		} `json:"critical"`
	}
	switch err := json.Unmarshal(payload, &p); {
	case err != nil:
		return fmt.Errorf("what was signed is not JSON: %w", err)
	case p.Critical.Type != cosignType:
		return fmt.Errorf("what was signed is of the type %q", p.Critical.Type)
	case p.Critical.Image.Digest != target.String():
		return fmt.Errorf("what was signed is another image, %q", p.Critical.Image.Digest)
	}
	return nil
}

// verify reports whether a key has signed the payload, as cosign does.
func verify(key crypto.PublicKey, payload, signature []byte) bool {
	sum := sha256.Sum256(payload)
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(k, sum[:], signature)
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(k, crypto.SHA256, sum[:], signature) == nil
	case ed25519.PublicKey:
		return ed25519.Verify(k, payload, signature)
	}
	return false
}

// minRSA is how many bits an RSA key has at least.
const minRSA = 2048

// parseKeys reads public keys in PEM, as cosign writes them.
func parseKeys(b []byte) (keys []crypto.PublicKey, err error) {
	for len(b) > 0 {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			break
		}
		if block.Type != "PUBLIC KEY" {
			return nil, fmt.Errorf("it has a PEM block %q, and not PUBLIC KEY", block.Type)
		}
		k, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, err
		}
		switch k := k.(type) {
		case *ecdsa.PublicKey, ed25519.PublicKey:
		case *rsa.PublicKey:
			if k.N.BitLen() < minRSA {
				return nil, fmt.Errorf("an RSA key has %d bits, fewer than %d", k.N.BitLen(), minRSA)
			}
		default:
			return nil, fmt.Errorf("a key is neither of ECDSA nor of RSA or Ed25519: %T", k)
		}
		keys = append(keys, k)
	}
	if strings.TrimSpace(string(b)) != "" {
		return nil, errors.New("it has something that is not a key in PEM")
	}
	if len(keys) == 0 {
		return nil, errors.New("it has no key in PEM")
	}
	return keys, nil
}

// identify returns a text that is the same for the same keys alone.
func identify(keys []crypto.PublicKey) (string, error) {
	var all []string
	for _, k := range keys {
		b, err := x509.MarshalPKIXPublicKey(k)
		if err != nil {
			return "", err
		}
		sum := sha256.Sum256(b)
		all = append(all, hex.EncodeToString(sum[:]))
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " "), nil
}
