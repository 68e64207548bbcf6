// SPDX-License-Identifier: Apache-2.0

// Package upgrade replaces berths of the last days and of each tag by the newest one under pods,
// and goes back and forth again. Pods end while no berth is there. Each status, code and line of a
// log has to be right afterwards.
//
// The tests need root, and the older versions, which `make upgrade` builds.
package upgrade
