// SPDX-License-Identifier: Apache-2.0

// Package cri138 has the fields, messages and methods that Kubernetes 1.38 adds to CRI.
//
// The cri-api of 1.38 needs Go 1.27, and berth is built with the Go and the cri-api of 1.37. In the
// wire format nothing is lost by that: fields that a message of the older cri-api does not know
// stay in it, as unknown fields, in requests, records and answers. [Of] reads the new fields from
// there, and [Set] puts them there. The messages of the new methods are whole. Delete this package
// when berth is built with that cri-api: each of its types has a namesake there.
//
// # Promises
//
//   - A field has the number that it has in CRI, and every field and method of CRI 1.38 that the
//     cri-api of 1.37 does not have is here. test/surface has a row for each.
//   - A field that a message has is read even if others are unknown, and setting one leaves the
//     others as they are.
//
// # Never
//
// Nothing is decided here: the rooms that read a field honour or refuse it.
package cri138
