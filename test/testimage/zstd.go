// SPDX-License-Identifier: Apache-2.0

package testimage

import "bytes"

// ZstdZeros returns size zeros, a multiple of 128 KiB, as zstd compresses them with a window of
// 2^log bytes. As a layer, it is an empty tar that takes a lot of memory to decompress.
func ZstdZeros(log, size int) []byte {
	const block = 128 << 10
	b := bytes.NewBuffer([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, byte(log-10) << 3}) // magic, flags, window
	for n := block; n <= size; n += block {
		header := 1<<1 | block<<3 // a byte that is repeated, how often
		if n == size {
			header |= 1 // the last one
		}
		b.Write([]byte{byte(header), byte(header >> 8), byte(header >> 16), 0})
	}
	return b.Bytes()
}
