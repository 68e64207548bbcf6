// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"encoding/binary"
	"encoding/json"
	"hash/crc32"

	"berth/internal/base/event"
)

const (
	magic = "berthent"
	// headerSize is the length of a record's header: magic, epoch, number, the length of the
	// payload, and the checksum of all these and the payload.
	headerSize = 32
	sumAt      = headerSize - 4
	// maxPayload bounds what is believed of the length in a header.
	maxPayload = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// epoch tells the records of one segment from those of all others.
type epoch [8]byte

// frame appends a record to b.
func (e epoch) frame(b []byte, number uint64, payload []byte) []byte {
	at := len(b)
	b = append(b, magic...)
	b = append(b, e[:]...)
	b = binary.LittleEndian.AppendUint64(b, number)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload))) //nolint:gosec // at most maxPayload
	sum := crc32.Update(crc32.Checksum(b[at:], castagnoli), castagnoli, payload)
	b = binary.LittleEndian.AppendUint32(b, sum)
	return append(b, payload...)
}

// epochOf returns the epoch of the record at the beginning of b.
func epochOf(b []byte) (e epoch) {
	if len(b) >= headerSize {
		e = epoch(b[8:16])
	}
	return e
}

// unframe returns the record at the beginning of b, and its length. It reports false if there is no
// whole one of this epoch. The payload is a part of b.
func (e epoch) unframe(b []byte) (number uint64, payload []byte, length int, ok bool) {
	if len(b) < headerSize || string(b[:8]) != magic || epochOf(b) != e {
		return 0, nil, 0, false
	}
	n := int(binary.LittleEndian.Uint32(b[24:]))
	if n > maxPayload || n > len(b)-headerSize {
		return 0, nil, 0, false
	}
	payload = b[headerSize : headerSize+n]
	if binary.LittleEndian.Uint32(b[sumAt:]) != crc32.Update(crc32.Checksum(b[:sumAt], castagnoli), castagnoli, payload) {
		return 0, nil, 0, false
	}
	return binary.LittleEndian.Uint64(b[16:]), payload, headerSize + n, true
}

// lengthOf returns how long the record is that begins with b, by its header; 0 if that is not known.
func lengthOf(b []byte) int {
	if len(b) < headerSize {
		return 0
	}
	if n := int(binary.LittleEndian.Uint32(b[24:])); n <= maxPayload {
		return headerSize + n
	}
	return 0
}

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
