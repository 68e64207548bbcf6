// SPDX-License-Identifier: Apache-2.0

// Package cri is the gRPC surface: it validates requests, calls the rooms that do the work, and
// turns their errors into gRPC codes. It is thin, and holds no state.
//
// # Promises
//
//   - Bad input is InvalidArgument and names the field; what does not exist is NotFound; what is
//     not there yet in berth is Unimplemented. No other room chooses a code.
//   - A panic in a call is that call's Internal error.
//
// Besides CRI v1 the socket serves berth.v1.Admin (admin.go), which only berth's own CLI speaks.
package cri
