// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/errdefs"
	"github.com/containerd/imgcrypt/v2"
	"github.com/containerd/imgcrypt/v2/images/encryption"
	"github.com/containerd/typeurl/v2"
)

// decrypt makes the stream processor of an encrypted layer. This program does the work of
// containerd's program ctd-decoder. The keys come with the request to unpack the layer.
func decrypt(_ context.Context, stream diff.StreamProcessor, payloads map[string]typeurl.Any) (diff.StreamProcessor, error) {
	var payload imgcrypt.Payload
	if given := payloads[imgcrypt.PayloadToolIDs[0]]; given == nil {
		return nil, fmt.Errorf("the layer is encrypted, and its client has no keys: %w", errdefs.ErrFailedPrecondition)
	} else if err := typeurl.UnmarshalTo(given, &payload); err != nil {
		return nil, fmt.Errorf("keys of an encrypted layer: %w", err)
	}
	if payload.Descriptor.MediaType != stream.MediaType() {
		return nil, fmt.Errorf("the keys are for a layer of the type %q, which is %q: %w", payload.Descriptor.MediaType, stream.MediaType(), errdefs.ErrInvalidArgument)
	}
	plain, r, _, err := encryption.DecryptLayer(&payload.DecryptConfig, stream, payload.Descriptor, false)
	if err != nil {
		return nil, fmt.Errorf("the layer is encrypted, and no key in image.decryption_keys_dir decrypts it: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	return &decrypted{stream: stream, r: r, mediaType: plain.MediaType}, nil
}

// decrypted is a layer as it was before it was encrypted.
type decrypted struct {
	stream    diff.StreamProcessor
	r         io.Reader
	mediaType string
}

// Read reads plain text. At the end it returns an error if somebody has changed the layer.
func (d *decrypted) Read(p []byte) (int, error) { return d.r.Read(p) }

// MediaType returns that of the plain layer.
func (d *decrypted) MediaType() string { return d.mediaType }

// Close closes the encrypted stream as well.
func (d *decrypted) Close() error {
	var err error
	if c, ok := d.r.(io.Closer); ok {
		err = c.Close()
	}
	return errors.Join(err, d.stream.Close())
}
