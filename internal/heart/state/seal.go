// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"

	"berth/internal/base/exit"
	"berth/internal/base/frame"
)

// A value ends with a field that no type of a record has: the checksum of its kind and key, and of
// all that is before it. An earlier berth passes over the field, and writes values without it.
const (
	sumName   = `,"sum":"`
	sumLength = len(sumName) + 8 + len(`"}`)
)

// errSum is returned for a value whose checksum does not match.
var errSum = errors.New("its checksum is another one: something in it was changed")

// seal adds the checksum to a JSON object that has a field.
func seal(kind Kind, key string, b []byte) []byte {
	open := b[: len(b)-1 : len(b)-1]
	return fmt.Appendf(open, `%s%08x"}`, sumName, sum(kind, key, open))
}

func sum(kind Kind, key string, b []byte) uint32 {
	n := crc32.Checksum([]byte(kind), frame.Castagnoli)
	n = crc32.Update(n, frame.Castagnoli, append([]byte(key), 0)) // the border is a part of it
	return crc32.Update(n, frame.Castagnoli, b)
}

// isSealed reports whether a value has a checksum, right or wrong.
func isSealed(b []byte) bool {
	at := len(b) - sumLength
	return at > 0 && string(b[at:at+len(sumName)]) == sumName && string(b[len(b)-2:]) == `"}`
}

// check returns [errSum] if a value has a checksum that is not the right one.
func check(kind Kind, key string, b []byte) error {
	if !isSealed(b) {
		return nil
	}
	at := len(b) - sumLength
	if want := fmt.Sprintf("%08x", sum(kind, key, b[:at])); string(b[at+len(sumName):len(b)-2]) != want {
		return errSum
	}
	return nil
}

// mend repairs one bit of a key, of its value, or of the checksum in that, or of two of these if
// their border is wrong. It reports false if that would not do.
func mend(kind Kind, it *item) bool {
	whole := func() bool {
		return isSealed(it.value) && check(kind, string(it.key), it.value) == nil && json.Valid(it.value)
	}
	was := *it
	if it.cut() && whole() {
		return true
	}
	*it = was
	at := len(it.value) - sumLength
	if at <= 0 {
		return false
	}
	it.key, it.value = bytes.Clone(it.key), bytes.Clone(it.value)
	if tail := it.value[at:]; distance(tail[:len(sumName)], []byte(sumName))+distance(tail[len(tail)-2:], []byte(`"}`)) == 1 {
		copy(tail, sumName)
		copy(tail[len(tail)-2:], `"}`)
		if whole() {
			return true
		}
	} else if flipped(tail, whole) {
		return true
	}
	is := sum(kind, string(it.key), it.value[:at])
	said, err := strconv.ParseUint(string(it.value[at+len(sumName):len(it.value)-2]), 16, 32)
	if i, bit, ok := flippedBy(is^uint32(said), len(it.key)+1+at); err == nil && ok && i != len(it.key) {
		if i < len(it.key) {
			it.key[i] ^= bit
		} else {
			it.value[i-len(it.key)-1] ^= bit
		}
		if whole() {
			return true
		}
	}
	*it = was
	return false
}

// cut divides a key and its value again, at the border that their content implies.
func (it *item) cut() bool {
	both := slices.Concat(it.key, it.value[:cap(it.value)])
	end := bytes.Index(both, []byte(sumName))
	for _, suffix := range []string{suffixIntent, suffixStatus} {
		at := bytes.Index(both, []byte(suffix+"{")) + len(suffix)
		if at >= len(suffix) && end > at && end+sumLength <= len(both) {
			it.key, it.value = both[:at:at], both[at:end+sumLength]
			return true
		}
	}
	return false
}

// flippedBy returns which bit of so many bytes changes their checksum by this, as the only one that
// is changed: the byte, and the bit in it. A checksum is linear: how a bit changes it depends on
// nothing but how many bytes follow.
func flippedBy(change uint32, length int) (at int, bit byte, ok bool) {
	var by [8]uint32
	for i := range by {
		by[i] = frame.Castagnoli[1<<i]
	}
	for at = length - 1; at >= 0; at-- {
		for i := range by {
			if by[i] == change {
				return at, 1 << i, true
			}
			by[i] = frame.Castagnoli[byte(by[i])] ^ by[i]>>8
		}
	}
	return 0, 0, false
}

// phases are the possible phases of a status.
var phases = []Phase{Creating, Created, Running, Exited, Ready, NotReady}

// complete returns an error for a status without a field that each berth has written into each
// status, or that means something else by its absence. A value without a checksum, of an earlier
// berth, may have lost one: an exit without its code would read as a success.
func (s *Status) complete(b []byte) error {
	if !slices.Contains(phases, s.Phase) {
		return fmt.Errorf("its phase is %q", s.Phase)
	}
	var has struct {
		Exit *struct {
			Code     *uint32      `json:"code"`
			Measured *bool        `json:"measured"`
			Origin   *exit.Origin `json:"origin"`
		} `json:"exit"`
	}
	if err := json.Unmarshal(b, &has); err != nil {
		return err
	}
	switch e := has.Exit; {
	case e == nil && s.Phase == Exited:
		return errors.New("it has ended, and has no exit")
	case e != nil && (e.Code == nil || e.Measured == nil || e.Origin == nil):
		return errors.New("its exit has no code, or not from which witness it is")
	}
	return nil
}
