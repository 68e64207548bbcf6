// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/imgcrypt/v2"
	"github.com/containerd/typeurl/v2"
	encspec "github.com/containers/ocicrypt/spec"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// The directory of keys may have other files: none of them keeps a key from being used, or blocks.
func TestTheKeysOfANodeGoWithAnEncryptedLayerAlone(t *testing.T) {
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"..data": der, "junk": []byte("junk"), "huge": make([]byte, maxKey+1)} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("..data", filepath.Join(dir, "key")); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	i := open(nil, Config{DecryptionKeysDir: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})

	var plain diff.ApplyConfig
	if err := i.Puller.unpacker.keys.decrypting(context.Background(), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip}, &plain); err != nil || len(plain.ProcessorPayloads) > 0 || log.Len() > 0 {
		t.Errorf("a plain layer: %v %v %s", plain.ProcessorPayloads, err, &log)
	}
	var c diff.ApplyConfig
	desc := ocispec.Descriptor{MediaType: encspec.MediaTypeLayerGzipEnc, Annotations: map[string]string{"a": "b"}}
	if err := i.Puller.unpacker.keys.decrypting(context.Background(), desc, &c); err != nil {
		t.Fatal(err)
	}
	for _, id := range imgcrypt.PayloadToolIDs {
		var got imgcrypt.Payload
		if err := typeurl.UnmarshalTo(c.ProcessorPayloads[id], &got); err != nil {
			t.Fatal(err)
		}
		if sent := got.DecryptConfig.Parameters["privkeys"]; len(sent) != 1 || !bytes.Equal(sent[0], der) || got.Descriptor.Annotations["a"] != "b" {
			t.Errorf("%s gets %d keys, for %v", id, len(sent), got.Descriptor)
		}
	}
	for _, name := range []string{"junk", "huge", "fifo"} {
		if !strings.Contains(log.String(), "file="+name) {
			t.Errorf("the log does not name %s: %s", name, &log)
		}
	}
	i.cfg.DecryptionKeysDir = filepath.Join(dir, "absent")
	if err := i.Puller.unpacker.keys.decrypting(context.Background(), desc, &c); err == nil || !strings.Contains(err.Error(), "image.decryption_keys_dir") {
		t.Errorf("a directory that is not there: %v", err)
	}
}
