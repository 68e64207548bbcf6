// SPDX-License-Identifier: Apache-2.0

// Package nodeapi serves the services of api/berth/v1: berth.v1.Node, which answers questions about
// the node beyond those of CRI, and berth.v1.Control, which changes it. It is thin: it asks the rooms
// and turns their answers into messages.
//
// # Files
//
//	node.go      Node: history, lanes and exits
//	state.go     Node.State: a summary of each record, and settings.go the settings
//	images.go    Node: images, transfers and verification, and disk.go the use of the disk
//	control.go   Control
//	register.go  the registration of both services with a server
//
// # Promises
//
//   - Node changes nothing, and its settings have no credential. Timelines and answers to Why have
//     texts of errors and the last lines of logs.
//   - An answer can always be encoded: text that is not UTF-8, which a program may have written into
//     its log, has U+FFFD in its place.
//   - What is in memory is answered while containerd is away. Images and the disk wait a little for
//     containerd, and are Unavailable then.
//
// # Never
//
// It chooses no gRPC code: package cri turns errors into codes, as for CRI.
package nodeapi
