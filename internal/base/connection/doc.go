// SPDX-License-Identifier: Apache-2.0

// Package connection is the way to containerd: a connection that comes and goes, and the parts that
// every caller needs beside it: the namespace, the label of this berth and the translation of
// errors.
//
// # Promises
//
//   - It works the same whether containerd runs in this process or behind a socket.
//   - Nothing waits for a containerd that is away: a [Connection] has every call fail at once with
//     ErrUnavailable and the reason. That is not an answer: nothing follows from it but that the
//     call is to be repeated.
//   - [Native] turns every error of containerd's into one of the sentinels of errdefs.
//
// # Never
//
// It does not know the calls that are made, and does not find out by itself whether containerd
// answers: Follow of package ctrd does, and tells the connection.
//
// # Looking at it live
//
// `berth status` shows whether containerd answers, and if not, why.
package connection
