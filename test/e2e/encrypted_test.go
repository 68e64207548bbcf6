// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ocicrypt "github.com/containers/ocicrypt"
	encconfig "github.com/containers/ocicrypt/config"
	encspec "github.com/containers/ocicrypt/spec"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// encrypted is a layer of which the registry has the cipher text.
type encrypted struct {
	v1.Layer // the plain one
	blob     []byte
}

func (e encrypted) Digest() (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(e.blob))
	return h, err
}

func (e encrypted) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(e.blob)), nil
}

func (e encrypted) Size() (int64, error) { return int64(len(e.blob)), nil }

func (e encrypted) MediaType() (types.MediaType, error) { return encspec.MediaTypeLayerGzipEnc, nil }

// encrypt adds a layer to an image that only the owner of a key can read.
func encrypt(t *testing.T, img v1.Image, plain v1.Layer, to *ecdsa.PublicKey) v1.Image {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(to)
	if err != nil {
		t.Fatal(err)
	}
	config, err := encconfig.EncryptWithJwe([][]byte{pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})})
	if err != nil {
		t.Fatal(err)
	}
	r, err := plain.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	hash, err := plain.Digest()
	if err != nil {
		t.Fatal(err)
	}
	cipher, annotations, err := ocicrypt.EncryptLayer(config.EncryptConfig, r, ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageLayerGzip,
		Digest:    digest.Digest(hash.String()),
	})
	if err != nil {
		t.Fatal(err)
	}
	blob, err := io.ReadAll(cipher)
	if err != nil {
		t.Fatal(err)
	}
	needed, err := annotations()
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.Append(img, mutate.Addendum{
		Layer:       encrypted{plain, blob},
		Annotations: needed,
		MediaType:   encspec.MediaTypeLayerGzipEnc,
	})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// An encrypted image is decrypted with the keys that the node has when it is pulled, and refused in
// words without them.
func TestAnEncryptedImageRunsWhereItsKeyIs(t *testing.T) {
	t.Parallel()
	keys := t.TempDir()
	if err := os.WriteFile(filepath.Join(keys, "README"), []byte("This is not a key.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := node.Start(t, node.Options{Args: []string{"--set", "image.decryption_keys_dir=" + keys}})
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	base, err := testimage.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	secret, err := testimage.Layer(testimage.File{Name: "secret", Mode: 0o644, Body: []byte("plain text\n")})
	if err != nil {
		t.Fatal(err)
	}
	ref := testregistry.Start(t).Push("team/encrypted:1", encrypt(t, base, secret, &key.PublicKey))
	pull := func() error {
		_, err := n.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
		return err
	}
	if err := pull(); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "no key in image.decryption_keys_dir") {
		t.Errorf("without the key: %v", err)
	}
	if !strings.Contains(n.Berth.Output(), "is not a private key that berth can use") {
		t.Error("the log does not name the file that is not a key")
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(keys, "team.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := pull(); err != nil {
		t.Fatal(err)
	}
	cfg := n.PodConfig()
	c := node.ContainerConfig("c", "cat", "/secret")
	c.Image.Image = ref
	id := n.Run(n.Pod(cfg), cfg, c)
	node.ExpectExit(t, n.Ended(id), 0, "Completed")
	if got := n.Log(id); got != "plain text\n" {
		t.Errorf("the container reads %q", got)
	}
}
