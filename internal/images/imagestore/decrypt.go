// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/imgcrypt/v2"
	"github.com/containerd/imgcrypt/v2/images/encryption"
	"github.com/containerd/typeurl/v2"
	ocicrypt "github.com/containers/ocicrypt/config"
	"github.com/containers/ocicrypt/utils"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/inroot"
)

// keys are the private keys of this node.
type keys struct{ *core }

const (
	maxKeys = 1000     // how many files of a directory of private keys are read
	maxKey  = 64 << 10 // and how many bytes of each
)

// decrypting gives the stream processors that decrypt layers what they need for an encrypted one:
// its description, which has the encrypted key, and the private keys of this node. The processors
// are those of package embed, or ctd-decoder where a containerd beside berth is configured with
// that.
func (ks *keys) decrypting(ctx context.Context, desc ocispec.Descriptor, c *diff.ApplyConfig) error {
	if !encryption.IsEncryptedDiff(ctx, desc.MediaType) {
		return nil
	}
	keys, err := ks.privateKeys()
	if err != nil {
		return fmt.Errorf("layer %s is encrypted: %w", desc.Digest, err)
	}
	config, err := ocicrypt.DecryptWithPrivKeys(keys, make([][]byte, len(keys)))
	if err != nil {
		return fmt.Errorf("layer %s is encrypted: %w", desc.Digest, err)
	}
	payload, err := typeurl.MarshalAny(&imgcrypt.Payload{DecryptConfig: *config.DecryptConfig, Descriptor: desc})
	if err != nil {
		return fmt.Errorf("layer %s is encrypted: encode its description: %w", desc.Digest, err)
	}
	if c.ProcessorPayloads == nil {
		c.ProcessorPayloads = map[string]typeurl.Any{}
	}
	for _, id := range imgcrypt.PayloadToolIDs {
		c.ProcessorPayloads[id] = payload
	}
	return nil
}

// privateKeys reads the keys of this node. A file that is not a key is left out, and logged. Hidden
// files are left out: a volume of Kubernetes has some.
func (ks *keys) privateKeys() ([][]byte, error) {
	dir := ks.cfg.DecryptionKeysDir
	if dir == "" {
		return nil, nil
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("image.decryption_keys_dir: %w", err)
	}
	var keys [][]byte
	for _, f := range files[:min(len(files), maxKeys)] {
		if strings.HasPrefix(f.Name(), ".") {
			continue
		}
		key, err := privateKey(filepath.Join(dir, f.Name()))
		if err != nil {
			ks.cfg.Logger.Warn("a file in image.decryption_keys_dir is not a private key that berth can use", "file", f.Name(), "err", err)
			continue
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// privateKey reads a private key, which may be behind a symbolic link.
func privateKey(path string) ([]byte, error) {
	key, err := inroot.ReadGiven(path, maxKey)
	if err != nil {
		return nil, err
	}
	_, err = utils.IsPrivateKey(key, nil)
	return key, err
}
