// SPDX-License-Identifier: Apache-2.0

// Package clock sets the wall clock of the machine, in both directions, under pods. It runs in the
// guest alone (make test-guest), because everything else on a machine would notice.
package clock
