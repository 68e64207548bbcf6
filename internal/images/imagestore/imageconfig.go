// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// maxConfig bounds the part of an image's configuration that is kept in memory, in bytes of its
	// JSON: the settings for a container, and not the history.
	maxConfig = 1 << 20
	// maxParsed bounds the memory for all configurations together, in bytes.
	maxParsed = 16 << 20
)

// checkConfig refuses an image with a configuration that cannot be used before the image has a
// name.
func checkConfig(ctx context.Context, cs content.Provider, desc ocispec.Descriptor) error {
	b, err := content.ReadBlob(ctx, cs, desc)
	if err != nil {
		return err
	}
	if _, _, err = parseConfig(b); err != nil {
		return fmt.Errorf("configuration %s: %w", desc.Digest, err)
	}
	var of ocispec.Platform
	if json.Unmarshal(b, &of) == nil && of.OS != "" && of.Architecture != "" && !platforms.Default().Match(platforms.Normalize(of)) {
		return otherPlatform([]ocispec.Platform{of})
	}
	return nil
}

// checkIndex explains why a part of an index was not found: there may be none for this node.
func checkIndex(ctx context.Context, cs content.Provider, desc ocispec.Descriptor, err error) error {
	var index ocispec.Index
	b, unread := content.ReadBlob(ctx, cs, desc)
	if unread != nil || json.Unmarshal(b, &index) != nil {
		return err
	}
	var all []ocispec.Platform
	for _, m := range index.Manifests {
		switch {
		case m.Platform == nil || platforms.Default().Match(*m.Platform):
			return err
		case m.Platform.OS != "unknown": // as provenance has it
			all = append(all, *m.Platform)
		}
	}
	return otherPlatform(all)
}

// maxPlatforms is how many platforms an error names.
const maxPlatforms = 20

func otherPlatform(has []ocispec.Platform) error {
	var names []string
	for _, p := range has[:min(len(has), maxPlatforms)] {
		if name := fmt.Sprintf("%.60s", platforms.Format(p)); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return fmt.Errorf("the image is for %s and not for this node, which is %s; push it for that platform as well: %w",
		cmp.Or(strings.Join(names, ", "), "no platform"), platforms.Format(platforms.DefaultSpec()), errdefs.ErrNotFound)
}

// parseConfig reads an image's configuration. kept is how many bytes of it stay in memory.
func parseConfig(b []byte) (p parsed, kept int, err error) {
	var o struct {
		SchemaVersion int             `json:"schemaVersion"`
		RootFS        ocispec.RootFS  `json:"rootfs"`
		Config        json.RawMessage `json:"config"`
	}
	if err := json.Unmarshal(b, &o); err != nil {
		return parsed{}, 0, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	if o.SchemaVersion != 0 { // its digest could be the ID of an artifact or a checkpoint as well
		return parsed{}, 0, fmt.Errorf("it has a schemaVersion, as a manifest has: %w", errdefs.ErrInvalidArgument)
	}
	if len(o.Config) > maxConfig {
		return parsed{}, 0, fmt.Errorf("what to run has %d bytes, more than %d: %w", len(o.Config), maxConfig, errdefs.ErrInvalidArgument)
	}
	if len(o.Config) > 0 {
		if err := json.Unmarshal(o.Config, &p.config); err != nil {
			return parsed{}, 0, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
		}
		if err := checkText(o.Config); err != nil {
			return parsed{}, 0, err
		}
	}
	p.chainID = identity.ChainID(o.RootFS.DiffIDs).String()
	return p, len(o.Config), nil
}

// parsed is an image as its manifest describes it. It never changes.
type parsed struct {
	id           digest.Digest // of the image
	configDigest digest.Digest // "" for an artifact
	chainID      string
	size         int64
	config       ocispec.ImageConfig
	checkpoint   bool
	artifact     string // the type of an artifact
}
