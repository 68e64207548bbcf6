// SPDX-License-Identifier: Apache-2.0

// Package client contains the client's side of tests: a terminal with a person at it, a WebSocket,
// a port-forward over SPDY, and the contents of an archive. Every error fails the test.
package client
