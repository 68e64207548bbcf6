// SPDX-License-Identifier: Apache-2.0

// Package frame writes and reads the records of append-only files: those of package state's journal
// and those of the history. Each record is independent, so that a file can be read round a damaged
// part.
//
// A record is a header and a payload. The header has eight bytes of magic, which distinguish files
// of one kind from all others, the epoch, which distinguishes one use of a file from earlier ones,
// the number of the record, the length of the payload, and the CRC32C of all these and of the
// payload. Numbers are little-endian.
//
// Berths of other versions read and write the same header, so it never changes.
package frame
