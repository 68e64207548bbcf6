// SPDX-License-Identifier: Apache-2.0

// Package errkind keeps the kind of an error where only its text arrives: behind gRPC, and at the
// end of a process that has answered for another one. A caller decides on the kind with errors.Is,
// and never on the text.
//
// # Promises
//
//   - [Of] names every kind that a caller in berth decides on, and [Carry] makes an error of that
//     kind of the names, in the same process or in another one.
//   - [Named] gives the kind to an error that another program has told as text alone. The texts are
//     in one list, and are the kernel's texts for its error numbers.
//
// # Never
//
// It does not change the text of an error, and takes away no kind that an error has.
package errkind
