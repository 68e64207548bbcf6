// SPDX-License-Identifier: Apache-2.0

// Package why says in a few sentences what became of a container or a pod, and why: what ended,
// with which code, who asked for it or what the kernel said, what it wrote last, how often that has
// happened before, and what comes next.
//
// # Use
//
//	found, err := r.Find(ctx, recorder.Query{Of: "web", Around: true}) // a recorder's
//	answer := why.Explain(found, nil, c.Now(), nil, time.Now())
//
// # Promises
//
//   - It says what the history has, and no more. Where CRI does not tell berth something, such as
//     whether the kubelet stopped a pod for its deletion or for an eviction, it names what it may
//     be, and where that is to be found.
//   - Each cause has a word for programs, [Cause], and its own sentence. The test has all of them.
//   - Of a pod, what keeps it from running now goes before what has failed, and that before what
//     has ended well or goes on.
//
// # Never
//
// It asks nobody and has no clock. It does not guess from the texts of other programs' errors; it
// quotes them.
//
// # To look at it live
//
// berth why POD, berth why POD/CONTAINER.
package why
