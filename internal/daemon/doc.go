// SPDX-License-Identifier: Apache-2.0

// Package daemon wires the rooms together and runs them: the order of start and stop, health,
// metrics.
//
// # Start
//
// State (refused when another berth has it), containerd (embedded, or waited for), the adapter,
// network, witnesses, records compared with what is there, then the socket. Ready is said only
// after all of it.
//
// # Stop
//
// The context ends: calls in flight get a moment, the controller's attempts end, then everything
// else in reverse. Processes of pods go on, with their shims.
package daemon
