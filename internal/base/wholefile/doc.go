// SPDX-License-Identifier: Apache-2.0

// Package wholefile writes files atomically: files of a host, which berth install and berth migrate
// change, and files in which berth remembers something by itself.
//
// # Promises
//
//   - A reader sees either the old or the new content, also after a kill and after a power cut.
//   - The remains of a killed process are overwritten by the next one, and never read. Its name is
//     always the same, so that it can be found and removed.
//   - What is written with a checksum is read as it was written, or is reported as damaged.
package wholefile
