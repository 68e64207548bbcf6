// SPDX-License-Identifier: Apache-2.0

// Package nri lets NRI plug-ins (the Node Resource Interface) take part in the life of pods. They
// connect to a socket, or are started from a directory.
//
// # Use
//
// A [Service] implements the hooks of the pod room. Run serves plug-ins until its context ends; the
// hooks may be called before and after that. The observer of pods calls Removed.
//
// # Promises
//
//   - CreateContainer, StartContainer and RunPodSandbox are relayed while the call is in flight,
//     each plug-in within a bound. A plug-in that does not answer is disconnected, and the call
//     goes on without it, unless the plug-in has asked for another policy.
//   - The OCI specification is checked after plug-ins have changed it: see [check]. A refused one
//     fails the call with the name of the fault.
//   - Ends and removals are relayed afterwards, in their order, by a goroutine of their own: a
//     plug-in that hangs delays neither an exit nor its release.
//   - A plug-in that connects gets a list of all pods and containers. Those being made are in the
//     list or come as a call of their own: the adaptation's lock of synchronisation is held over
//     each relay together with the change of the list.
//   - A plug-in that has asked to stay connected although it does not answer is left alone for a
//     while once it did not answer a few requests in a row: see [health].
//   - Updates and evictions requested by plug-ins are carried out one after the other for each
//     container, and side by side for different ones, each within a bound. The queue is bounded,
//     too; an excess is refused or dropped, and logged.
//
// # Never
//
// Nothing of a plug-in is on record: one that connects again is synchronised again.
package nri
