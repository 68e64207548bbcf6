// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"fmt"
)

const (
	// maxEtcFile bounds the reads of an image's /etc/passwd and /etc/group, in bytes each.
	maxEtcFile = 4 << 20
	// maxCachedFiles bounds the cache of all images' files together, in bytes.
	maxCachedFiles = 16 << 20
)

// Files returns the image's /etc/passwd and /etc/group. They are read once for each image, as long
// as they are small enough to be remembered.
func (s *Service) Files(ctx context.Context, r Root) (passwd, group []byte, err error) {
	if f, ok := s.files.Get(r.ChainID); ok {
		return f[0], f[1], nil
	}
	var b [][]byte
	err = s.unpacked(ctx, r, func() (err error) {
		b, err = s.backend.ReadFiles(ctx, r, maxEtcFile, "etc/passwd", "etc/group")
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read users of image: %w", err)
	}
	s.files.Put(r.ChainID, [2][]byte{b[0], b[1]}, len(b[0])+len(b[1]))
	return b[0], b[1], nil
}

// CopyOut copies directories of the image, by their paths, into the directories that dirs has for
// them.
func (s *Service) CopyOut(ctx context.Context, r Root, dirs map[string]string) error {
	return s.unpacked(ctx, r, func() error { return s.backend.CopyOut(ctx, r, dirs) })
}
