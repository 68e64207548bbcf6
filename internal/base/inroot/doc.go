// SPDX-License-Identifier: Apache-2.0

// Package inroot opens files below a directory that another party has filled: the root of an image,
// a layer that is being unpacked, or the logs of a pod.
//
// # Promises
//
//   - Every link is resolved as if the directory were the root directory: none leads out of it, nor
//     into a mount below it. On the way to a log no link is followed at all.
//   - The type of a file is checked before it is used, because opening a device has effects, and
//     opening a FIFO waits. So it is with files that the administrator has given, of which links are
//     followed.
//
// # Never
//
// It creates nothing, and opens nothing for writing.
package inroot
