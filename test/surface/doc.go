// SPDX-License-Identifier: Apache-2.0

// Package surface covers all of CRI that berth serves: every field of every request, and every
// method with requests that no real client sends.
//
// # Promises
//
//   - [Rows] has the treatment of each field of each request: it is honoured, refused by its name,
//     or without effect, with the reason. There is no fourth way (PROPERTIES 22).
//   - The rows are compared with the descriptors of the protocol: a field that is new in cri-api
//     fails the test, and so does a row for a field that does not exist any more.
//   - A row that says "refused" is true: its request is sent to a berth between fakes, and the
//     error has the code and names the field. A row that names a test as its proof names one that
//     exists.
//   - docs/cri-fields.md is made from the rows: go test ./test/surface -run Document -update
package surface
