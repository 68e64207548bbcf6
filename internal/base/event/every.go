// SPDX-License-Identifier: Apache-2.0

package event

import "slices"

// Every returns one event of each type, for tests that look at all of them.
func Every() []Event { return slices.Clone(kinds) }
