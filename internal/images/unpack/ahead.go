// SPDX-License-Identifier: Apache-2.0

package unpack

import "io"

// A layer is decompressed up to aheadBuffers times aheadBytes ahead of its files.
const (
	aheadBytes   = 256 << 10
	aheadBuffers = 4
)

// ahead reads from a reader in a goroutine: a large layer is decompressed on one processor while
// another hashes and writes its files. gzip takes most of the time of a layer, in the fastest
// decompressor for Go as well: half-compressible bytes come out of klauspost/compress at 140 MB/s
// where SHA-256 takes 1280 MB/s, and out of zstd at 530 MB/s.
type ahead struct {
	full, free chan []byte
	b, buf     []byte // what has not been read of a buffer
	err        error  // of the reader; read once full is closed
}

func newAhead(r io.Reader) *ahead {
	a := &ahead{full: make(chan []byte, aheadBuffers), free: make(chan []byte, aheadBuffers)}
	for range aheadBuffers {
		a.free <- make([]byte, aheadBytes)
	}
	go func() { // until the end of the process
		defer close(a.full)
		for b := range a.free {
			n := 0
			for n < len(b) && a.err == nil {
				var m int
				m, a.err = r.Read(b[n:])
				n += m
			}
			a.full <- b[:n]
			if a.err != nil {
				return
			}
		}
	}()
	return a
}

// Read reads the next bytes.
func (a *ahead) Read(p []byte) (int, error) {
	for len(a.b) == 0 {
		if a.buf != nil {
			a.free <- a.buf[:cap(a.buf)]
			a.buf = nil
		}
		b, ok := <-a.full
		if !ok {
			return 0, a.err
		}
		a.b, a.buf = b, b
	}
	n := copy(p, a.b)
	a.b = a.b[n:]
	return n, nil
}
