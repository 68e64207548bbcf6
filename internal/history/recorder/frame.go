// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"encoding/json"

	"berth/internal/base/event"
	"berth/internal/base/frame"
)

// magic begins each record, and maxPayload bounds the length that is believed of a header.
const (
	magic      = "berthent"
	maxPayload = 1 << 20
)

// formOf returns the form of the records in a segment that begins with b.
func formOf(b []byte) frame.Form { return frame.Form{Magic: magic, Epoch: frame.EpochOf(b)} }

// format is the number of the layout of segments, and of payloads. A segment of a later format is
// not read, and dropped in its turn.
const format = 1

// opening is the payload of the first record of a segment.
type opening struct {
	Format int `json:"format"`
}

// stored is the payload of a record.
type stored struct {
	Of    event.Names     `json:"of,omitzero"`
	Entry json.RawMessage `json:"entry"`
}

// maxText is the length of a text in an entry, in bytes, once the entry has become too long.
const (
	maxText  = 2048
	maxEntry = 16 << 10
)

// encode returns an entry as it is stored. Long texts in an entry that is very long are cut.
func encode(n event.Entry, of event.Names) ([]byte, error) {
	raw, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	if len(raw) > maxEntry {
		var v any
		if err := json.Unmarshal(raw, &v); err != nil {
			return nil, err
		}
		if raw, err = json.Marshal(cutTexts(v)); err != nil {
			return nil, err
		}
	}
	return json.Marshal(stored{of, raw})
}

// cutTexts shortens the texts in a JSON value, and its lists.
func cutTexts(v any) any {
	const maxList = 32
	switch v := v.(type) {
	case string:
		return cut(v)
	case map[string]any:
		for k, x := range v {
			v[k] = cutTexts(x)
		}
	case []any:
		if len(v) > maxList {
			v = v[:maxList]
		}
		for i, x := range v {
			v[i] = cutTexts(x)
		}
		return v
	}
	return v
}
