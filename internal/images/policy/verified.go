// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"berth/internal/base/wholefile"
)

// maxVerified bounds how much is remembered.
const maxVerified = 4096

// verified remembers which digests had the signatures that were wanted, so that a container is made
// from an image that is here while its registry is away: also after a reboot. An entry holds for
// the same repository and for the same keys and programs.
type verified struct {
	file string // "" for none
	log  *slog.Logger

	mu     sync.Mutex
	loaded bool
	at     map[string]time.Time // by key
}

// verifiedKey is the key of an entry.
func verifiedKey(wanted string, n name, d digest.Digest) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", wanted, n.repository, d))
	return hex.EncodeToString(sum[:])
}

// has reports whether an image was verified.
func (v *verified) has(wanted string, n name, d digest.Digest) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.loadLocked()
	_, ok := v.at[verifiedKey(wanted, n, d)]
	return ok
}

// add remembers that an image was verified.
func (v *verified) add(wanted string, n name, d digest.Digest) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.loadLocked()
	key := verifiedKey(wanted, n, d)
	if _, ok := v.at[key]; ok {
		return
	}
	v.at[key] = time.Now()
	if len(v.at) > maxVerified {
		delete(v.at, slices.MinFunc(slices.Collect(maps.Keys(v.at)), func(a, b string) int { return v.at[a].Compare(v.at[b]) }))
	}
	v.writeLocked()
}

// forget forgets that an image was verified.
func (v *verified) forget(wanted string, n name, d digest.Digest) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.loadLocked()
	key := verifiedKey(wanted, n, d)
	if _, ok := v.at[key]; ok {
		delete(v.at, key)
		v.writeLocked()
	}
}

func (v *verified) loadLocked() {
	if v.loaded {
		return
	}
	v.loaded = true
	if v.file != "" {
		err := wholefile.ReadSealed(v.file, &v.at)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			v.at = nil
			v.log.Warn("which images were verified cannot be read, and they are verified again", "file", v.file, "err", err)
		}
	}
	if v.at == nil {
		v.at = map[string]time.Time{}
	}
}

// writeLocked writes the entries. If it cannot, the images are verified again by the next berth.
func (v *verified) writeLocked() {
	if v.file == "" {
		return
	}
	if err := wholefile.WriteSealed(v.file, v.at); err != nil {
		v.log.Warn("which images were verified cannot be written", "file", v.file, "err", err)
	}
}
