// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func TestWhatIsReadAheadIsTheSame(t *testing.T) {
	for _, size := range []int{0, 1, aheadBytes, aheadBytes + 1, 3*aheadBuffers*aheadBytes + 7} {
		want := make([]byte, size)
		for i := range want {
			want[i] = byte(i * i >> 8)
		}
		for name, r := range map[string]io.Reader{
			"whole":   bytes.NewReader(want),
			"halves":  iotest.HalfReader(bytes.NewReader(want)),
			"dataErr": iotest.DataErrReader(bytes.NewReader(want)),
		} {
			if got, err := io.ReadAll(newAhead(r)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes, %s: %d bytes, %v", size, name, len(got), err)
			}
		}
		cut := errors.Join(io.ErrUnexpectedEOF)
		got, err := io.ReadAll(newAhead(io.MultiReader(bytes.NewReader(want), iotest.ErrReader(cut))))
		if !errors.Is(err, cut) || !bytes.Equal(got, want) {
			t.Errorf("%d bytes and an error: %d bytes, %v", size, len(got), err)
		}
	}
}
