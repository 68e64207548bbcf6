// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// spdyPiece is the longest data frame that the library gets. It keeps up to 50 frames for each
	// of five groups of streams while they are not read, so a connection has no more than 1 MiB of
	// input in memory.
	spdyPiece = 4 << 10
	// maxControl is how long a control frame may be, compressed, and maxFields and maxField bound
	// the headers in it. The streams of exec, attach and port-forward have three short ones.
	maxControl = 8 << 10
	maxFields  = 8
	maxField   = 256
)

// The control frames of SPDY/3.1 that a client has a reason to send.
const (
	synStream    = 1
	rstStream    = 3
	settings     = 4
	ping         = 6
	goAway       = 7
	windowUpdate = 9
)

// frames reads the frames of a SPDY client. The library reads a data frame of up to 16 MiB whole
// before it passes a byte of it on: frames splits the data into short frames. Frames that a client
// has no reason to send, and for which the library would keep data or leave a goroutine behind, are
// errors.
type frames struct {
	from io.Reader

	head   [12]byte // of the frame that is read from it now
	ready  []byte   // the part of head that was not read yet
	rest   int      // bytes of the frame's payload that follow in from
	stream uint32   // of a data frame
	flags  byte     // of a data frame
	more   int      // bytes of the client's data frame that follow the frame
	last   uint32   // the last stream that the client has opened
}

// Read reads a part of a frame.
func (f *frames) Read(b []byte) (int, error) {
	for len(b) > 0 {
		switch {
		case len(f.ready) > 0:
			n := copy(b, f.ready)
			f.ready = f.ready[n:]
			return n, nil
		case f.rest > 0:
			n, err := f.from.Read(b[:min(len(b), f.rest)])
			f.rest -= n
			return n, err
		case f.more > 0:
			f.split()
		default:
			if err := f.next(); err != nil {
				return 0, err
			}
		}
	}
	return 0, nil
}

// next reads the head of the client's next frame.
func (f *frames) next() error {
	if _, err := io.ReadFull(f.from, f.head[:8]); err != nil {
		return err
	}
	f.ready = f.head[:8]
	first := binary.BigEndian.Uint32(f.head[:])
	length := int(binary.BigEndian.Uint32(f.head[4:]) & 0xffffff)
	if first>>31 == 1 {
		return f.control(first&0xffff, length)
	}
	f.stream, f.flags, f.more = first, f.head[4], length
	f.split()
	return nil
}

// split makes the head of a data frame with the next part of the client's.
func (f *frames) split() {
	f.rest = min(f.more, spdyPiece)
	f.more -= f.rest
	flags := f.flags
	if f.more > 0 {
		flags = 0 // the last part ends the stream
	}
	binary.BigEndian.PutUint32(f.head[:], f.stream)
	binary.BigEndian.PutUint32(f.head[4:], uint32(f.rest))
	f.head[4] = flags
	f.ready = f.head[:8]
}

// control checks a control frame.
func (f *frames) control(kind uint32, length int) error {
	f.rest = length
	switch kind {
	case rstStream, settings, ping, goAway, windowUpdate:
	case synStream:
		// For a stream that cannot be, the library starts a goroutine, which waits until the client
		// takes the answer.
		if length < 4 {
			return errors.New("a stream is opened without a number")
		}
		if _, err := io.ReadFull(f.from, f.head[8:12]); err != nil {
			return err
		}
		f.ready, f.rest = f.head[:12], length-4
		stream := binary.BigEndian.Uint32(f.head[8:]) &^ (1 << 31)
		if stream%2 == 0 || stream <= f.last {
			return fmt.Errorf("stream %d is opened after stream %d", stream, f.last)
		}
		f.last = stream
	default:
		return fmt.Errorf("a control frame of type %d is not expected", kind)
	}
	if length > maxControl {
		return fmt.Errorf("a control frame of type %d has %d bytes", kind, length)
	}
	return nil
}
