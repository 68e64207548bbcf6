// SPDX-License-Identifier: Apache-2.0

// Package wholefile writes files that are there whole or not at all: those of a host, which berth
// install and berth migrate change, and those in which berth remembers something by itself.
//
// # Promises
//
//   - Whoever looks at a file sees what it had before or all that is written, also after a kill and
//     after a power cut.
//   - What a process left that was killed is written over by the next one, and never read. Its name
//     is always the same, so that it can be found and removed.
package wholefile
