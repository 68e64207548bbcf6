// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"io"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/imgcrypt/v2"
	"github.com/containerd/typeurl/v2"
	"github.com/containers/ocicrypt"
	"github.com/containers/ocicrypt/config"
	encspec "github.com/containers/ocicrypt/spec"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A layer is decrypted with the key that it was encrypted for, and with no other one; one that was
// changed is an error, also where no digest is compared.
func TestALayerIsDecryptedWithItsKeyAlone(t *testing.T) {
	const text = "the plain layer"
	own, public := keyPair(t)
	other, _ := keyPair(t)
	to, err := config.EncryptWithJwe([][]byte{public})
	if err != nil {
		t.Fatal(err)
	}
	r, annotations, err := ocicrypt.EncryptLayer(to.EncryptConfig, strings.NewReader(text), ocispec.Descriptor{Digest: ocispec.DescriptorEmptyJSON.Digest})
	if err != nil {
		t.Fatal(err)
	}
	cipher, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	desc := ocispec.Descriptor{MediaType: encspec.MediaTypeLayerEnc}
	if desc.Annotations, err = annotations(); err != nil {
		t.Fatal(err)
	}
	read := func(layer []byte, mediaType string, keys ...[]byte) (string, error) {
		from, err := config.DecryptWithPrivKeys(keys, make([][]byte, len(keys)))
		if err != nil {
			t.Fatal(err)
		}
		payload, err := typeurl.MarshalAny(&imgcrypt.Payload{DecryptConfig: *from.DecryptConfig, Descriptor: desc})
		if err != nil {
			t.Fatal(err)
		}
		p, err := diff.GetProcessor(t.Context(), diff.NewProcessorChain(mediaType, bytes.NewReader(layer)), map[string]typeurl.Any{imgcrypt.PayloadToolIDs[0]: payload})
		if err != nil {
			return "", err
		}
		defer p.Close()
		b, err := io.ReadAll(p)
		return string(b), err
	}
	if got, err := read(cipher, desc.MediaType, other, own); err != nil || got != text {
		t.Errorf("with the key: %q %v", got, err)
	}
	for what, keys := range map[string][][]byte{"another key": {other}, "no key": nil} {
		if got, err := read(cipher, desc.MediaType, keys...); err == nil || got != "" || !strings.Contains(err.Error(), "image.decryption_keys_dir") {
			t.Errorf("%s: %q %v", what, got, err)
		}
	}
	changed := bytes.Clone(cipher)
	changed[0] ^= 1
	if _, err := read(changed, desc.MediaType, own); err == nil {
		t.Error("a layer that was changed is not an error")
	}
	if _, err := read(cipher, encspec.MediaTypeLayerGzipEnc, own); err == nil {
		t.Error("a description of another layer is not an error")
	}
	if _, err := diff.GetProcessor(t.Context(), diff.NewProcessorChain(desc.MediaType, bytes.NewReader(cipher)), nil); err == nil {
		t.Error("a client without keys is not an error")
	}
}

func keyPair(t *testing.T) (private, public []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if private, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return private, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}
