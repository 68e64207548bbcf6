// SPDX-License-Identifier: Apache-2.0

package frame

import (
	"encoding/binary"
	"hash/crc32"
)

const (
	// Header is the length of a record's header.
	Header = 32
	// SumAt is the offset of the checksum in the header.
	SumAt = Header - 4
)

// Castagnoli is the table of the checksums.
var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Form is the beginning that the records of one file have in common.
type Form struct {
	Magic string // of eight bytes
	Epoch [8]byte
}

// Append appends a record to b.
func (f Form) Append(b []byte, number uint64, payload []byte) []byte {
	at := len(b)
	b = append(append(b, f.Magic...), f.Epoch[:]...)
	b = binary.LittleEndian.AppendUint64(b, number)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Update(crc32.Checksum(b[at:], Castagnoli), Castagnoli, payload))
	return append(b, payload...)
}

// Read returns the record that b starts with. It returns false if that is not a whole record of
// this form. The payload is a part of b.
func (f Form) Read(b []byte) (number uint64, payload []byte, ok bool) {
	n, ok := Length(b)
	if !ok || n > len(b) || string(b[:8]) != f.Magic || EpochOf(b) != f.Epoch || Sum(b[:n]) != binary.LittleEndian.Uint32(b[SumAt:]) {
		return 0, nil, false
	}
	return binary.LittleEndian.Uint64(b[16:]), b[Header:n], true
}

// EpochOf returns the epoch of the record that b starts with, or zeros if b is shorter than a
// header.
func EpochOf(b []byte) (e [8]byte) {
	if len(b) >= Header {
		e = [8]byte(b[8:16])
	}
	return e
}

// Length returns the length of the record that b starts with, by its header, which may be damaged.
// It returns false if b is shorter than a header.
func Length(b []byte) (int, bool) {
	if len(b) < Header {
		return 0, false
	}
	return Header + int(binary.LittleEndian.Uint32(b[24:])), true
}

// Sum returns the checksum for the header of a record, which is all of b.
func Sum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:SumAt], Castagnoli), Castagnoli, b[Header:])
}
