// SPDX-License-Identifier: Apache-2.0

// Package execproc has the values in which the server of streams and the engine speak about exec
// processes. The engine lies below the server, so neither can own them.
package execproc

import "github.com/opencontainers/runtime-spec/specs-go"

// Key names an exec process.
type Key struct {
	Container string // its container
	Exec      string // unique within the container
}

// String writes the key for people.
func (k Key) String() string { return k.Container + "." + k.Exec }

// Request describes an exec process that is to be made.
type Request struct {
	Process *specs.Process
	// Paths of FIFOs; empty for a stream that is not wanted. A terminal has no standard error.
	Stdin  string
	Stdout string
	Stderr string
}
