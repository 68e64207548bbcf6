// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// dataFrame is the head of a data frame.
func dataFrame(stream uint32, flags byte, length int) []byte {
	b := binary.BigEndian.AppendUint32(nil, stream)
	b = binary.BigEndian.AppendUint32(b, uint32(length))
	b[4] = flags
	return b
}

// controlFrame is a control frame that begins with a stream.
func controlFrame(kind uint16, stream uint32, length int) []byte {
	b := binary.BigEndian.AppendUint16(nil, 0x8003)
	b = binary.BigEndian.AppendUint16(b, kind)
	b = binary.BigEndian.AppendUint32(b, uint32(length))
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, make([]byte, max(0, length-4))...)[:8+length]
}

func TestALongDataFrameIsSplit(t *testing.T) {
	payload := []byte(strings.Repeat("0123456789", 1000))
	client := bytes.Join([][]byte{
		controlFrame(synStream, 1, 18),
		dataFrame(1, 0, 0),
		dataFrame(1, 1, len(payload)), payload, // the last of the stream
		controlFrame(ping, 1, 4),
		dataFrame(3, 0, 3), []byte("end"),
	}, nil)
	for name, from := range map[string]io.Reader{
		"at once":      bytes.NewReader(client),
		"byte by byte": iotest.OneByteReader(bytes.NewReader(client)),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := io.ReadAll(&frames{from: from})
			if err != nil {
				t.Fatal(err)
			}
			var want []byte
			want = append(want, controlFrame(synStream, 1, 18)...)
			want = append(want, dataFrame(1, 0, 0)...)
			for rest := payload; len(rest) > 0; {
				n := min(len(rest), spdyPiece)
				flags := byte(0)
				if n == len(rest) {
					flags = 1
				}
				want = append(append(want, dataFrame(1, flags, n)...), rest[:n]...)
				rest = rest[n:]
			}
			want = append(want, controlFrame(ping, 1, 4)...)
			want = append(append(want, dataFrame(3, 0, 3)...), "end"...)
			if !bytes.Equal(got, want) {
				t.Errorf("got %d bytes, want %d", len(got), len(want))
			}
		})
	}
}

// PROPERTIES 38: the library starts a goroutine for each stream that cannot be opened, keeps
// headers that nobody reads, and unpacks those of a stream whatever their size.
func TestFramesThatAClientHasNoReasonToSendAreAnError(t *testing.T) {
	opened := controlFrame(synStream, 3, 18)
	for name, bad := range map[string][]byte{
		"the same stream again": bytes.Join([][]byte{opened, opened}, nil),
		"an earlier stream":     bytes.Join([][]byte{opened, controlFrame(synStream, 1, 18)}, nil),
		"a stream of a server":  controlFrame(synStream, 2, 18),
		"no stream":             controlFrame(synStream, 0, 18),
		"no number":             controlFrame(synStream, 1, 3),
		"long headers":          controlFrame(synStream, 1, maxControl+1),
		"a reply":               controlFrame(2, 1, 12),
		"more headers":          controlFrame(8, 1, 12),
		"a frame of no type":    controlFrame(77, 1, 12),
	} {
		if _, err := io.ReadAll(&frames{from: bytes.NewReader(bad)}); err == nil {
			t.Errorf("%s is not an error", name)
		}
	}
	if _, err := io.ReadAll(&frames{from: bytes.NewReader(opened[:10])}); err == nil {
		t.Error("half a frame is not an error")
	}
}
