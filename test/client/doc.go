// SPDX-License-Identifier: Apache-2.0

// Package client has what tests use on the side of a client: a terminal with a person at it, a
// WebSocket, a port-forward over SPDY, and the contents of an archive. What fails, fails the test.
package client
