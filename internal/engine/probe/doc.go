// SPDX-License-Identifier: Apache-2.0

// Package probe finds out the capabilities of runtime handlers: the features of their OCI runtimes
// and known holes in these; whether their pods can have user namespaces, and can do without a
// process.
//
// A [Probe] asks OCI runtimes, which are programs on this host, and containerd with its shims and
// snapshotters. It asks in the background, each handler until there is an answer, and at once for a
// pod that depends on the answer.
//
// # Promises
//
//   - An answer is kept, also the answer that a handler cannot do something. An error is not an
//     answer: the question is asked again, after a wait that doubles up to five minutes. Whatever
//     containerd, its snapshotters and its shims have answered is asked again on each connection.
//   - A feature that is not known is not advertised, and is not given to a pod. A handler that does
//     not answer costs its pods the feature and nothing else.
//   - A question has a deadline, and concurrent callers share it.
//
// # Never
//
// A probe changes nothing, neither on this host nor in containerd. The caller decides whether a pod
// is refused because of its handler.
//
// # To look at it live
//
// `crictl info` shows the features of each handler, and the warnings. The log has the first error
// of each question about each handler.
package probe
