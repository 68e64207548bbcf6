// SPDX-License-Identifier: Apache-2.0

package frame

import (
	"encoding/hex"
	"slices"
	"testing"
)

// The header is that of each berth before: these bytes were written by one with two
// implementations of it, one for each magic.
func TestTheHeaderOfEarlierBerths(t *testing.T) {
	for magic, want := range map[string]string{
		"berthrec": "62657274687265630102030405060708070605040302010005000000d1ed8686",
		"berthent": "6265727468656e74010203040506070807060504030201000500000059d02fea",
	} {
		f := Form{magic, [8]byte{1, 2, 3, 4, 5, 6, 7, 8}}
		b := f.Append(nil, 0x01020304050607, []byte("hello"))
		if got := hex.EncodeToString(b[:Header]); got != want {
			t.Errorf("%s: %s", magic, got)
		}
	}
}

// One bit that is changed, or an end that is cut off, leaves nothing that can be taken for a record.
func TestADamagedRecordIsNotRead(t *testing.T) {
	f := Form{"magic 12", [8]byte{9}}
	two := f.Append(f.Append(nil, 1, []byte("one")), 2, []byte("two"))
	n, payload, ok := f.Read(two)
	if !ok || n != 1 || string(payload) != "one" {
		t.Fatal(n, payload, ok)
	}
	length := Header + len(payload)
	if n, payload, ok = f.Read(two[length:]); !ok || n != 2 || string(payload) != "two" {
		t.Fatal(n, payload, ok)
	}
	for bit := range 8 * length {
		b := slices.Clone(two)
		b[bit/8] ^= 1 << (bit % 8)
		if n, payload, ok := f.Read(b); ok {
			t.Errorf("bit %d: %d %q", bit, n, payload)
		}
	}
	for cut := range length {
		if _, _, ok := f.Read(two[:cut]); ok {
			t.Errorf("%d bytes are a record", cut)
		}
	}
}
