// SPDX-License-Identifier: Apache-2.0

// Package gvisor runs pods of gVisor, and pods of runc beside them, on one berth. Their processes
// are in a kernel of their own, so berth knows of them what their shim says.
//
// The tests need root, the output of `make tools build`, and runsc with its shim, which
// `make test-gvisor` builds.
package gvisor
