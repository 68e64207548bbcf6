// SPDX-License-Identifier: Apache-2.0

// Package inroot opens what is below a directory that somebody else has filled: the root of an image,
// a layer that is being unpacked, or the logs of a pod.
//
// # Promises
//
//   - Every link is resolved as if the directory were the root directory: none leads out of it, nor
//     into anything that is mounted below it. On the way to a log no link is followed at all.
//   - What is found is not acted on before its type is known: opening a device does something, and
//     opening a FIFO waits.
//
// # Never
//
// It creates nothing, and opens nothing for writing.
package inroot
