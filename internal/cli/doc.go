// SPDX-License-Identifier: Apache-2.0

// Package cli is the person's door: every command of berth. All but serve and config speak CRI to a
// running berth over its socket, as the kubelet does; a few (import, timeline, debug) speak berth.v1.Admin on
// the same socket.
//
// Tables are for people, -o json and -o yaml for programs. An error is one sentence on stderr that names
// the object and what to do.
package cli
