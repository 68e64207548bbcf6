// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"berth/internal/base/clock"
	"berth/internal/base/event"
)

// Stored calls each with every entry in the ring of a berth that does not run, the oldest first,
// without what is older than since. It changes nothing. missing says in sentences what cannot be
// read of it; an error says that there is nothing to read.
func Stored(dir string, since time.Time, each func(Record)) (missing []string, err error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("read the history: %w", err)
	}
	g := newRing(dir, 0, clock.New(nil))
	if err := g.open(); err != nil {
		return nil, fmt.Errorf("read the history in %s: %w", dir, err)
	}
	if g.file != nil {
		defer func() { _ = g.file.Close() }()
	}
	names := map[string]event.Names{}
	for _, s := range g.all() {
		err := s.scan(func(number uint64, payload []byte) {
			var p stored
			var head struct {
				At clock.Instant `json:"at"`
				ID string        `json:"id"`
			}
			if json.Unmarshal(payload, &p) != nil || json.Unmarshal(p.Entry, &head) != nil {
				return
			}
			if p.Of != (event.Names{}) {
				names[head.ID] = p.Of
			}
			if !head.At.Stamp().Before(since) {
				each(Record{Number: number, Of: names[head.ID], Entry: p.Entry})
			}
		})
		if err != nil {
			missing = append(missing, fmt.Sprintf("The file %s of the timeline cannot be read to its end: %v.", filepath.Base(s.path), err))
		}
	}
	return missing, nil
}
