// SPDX-License-Identifier: Apache-2.0

// Package frame writes and reads the records of a file that is only written on: those of package
// state's journal and those of the history. Each record stands for itself, so that a file can be
// read round a part of it that is damaged.
//
// A record is a header and a payload. The header has eight bytes of magic, which tell files of one
// kind from all others, the epoch, which tells one use of a file from earlier ones, the number of
// the record, the length of the payload, and the CRC32C of all these and of the payload. Numbers
// are little-endian.
//
// Berths of other versions read and write the same header, so it never changes.
package frame
