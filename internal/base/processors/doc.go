// SPDX-License-Identifier: Apache-2.0

// Package processors tells how many processors berth may use, lets it run Go code on more threads
// than that, and lets long work give way to urgent work.
//
// # The trick
//
// Go runs at most GOMAXPROCS goroutines at a time, by default one for each processor. When all of
// them compute, as they do while an image is fetched and hashed, no thread waits for the network or
// for epoll any more: one thread of the runtime polls the kernel every ten milliseconds, and the
// events that it finds wait in a queue behind goroutines that run for ten milliseconds each. The
// end of a process goes from goroutine to goroutine, and pays that several times. With some spare
// threads the kernel does the scheduling, and it favours threads that have slept, as those have
// that handle an end.
//
// It relies on how Go schedules goroutines, and on how Linux schedules threads.
// tricks.spare_threads turns it off; docs/tricks.md has its benefit. Delete it when Go waits for
// the network while all its threads compute (https://github.com/golang/go/pull/51651).
//
// It has a price: Go's garbage collector uses up to a quarter of the threads, and counts the spare
// ones.
//
// # Work that gives way
//
// [Behind] and [Yield] are not tricks: the kernel offers this from Linux 6.12 on.
//
// # Promises
//
//   - [Count] does not change when there are spare threads, so sizes derived from it stay as they
//     are.
//   - There are none if a person or the control group's quota has decided how many processors berth
//     uses: then more threads would only use up the quota sooner.
//   - Work in [Behind] gets as much of the processors as it would otherwise, and its thread is as
//     before when it is done.
package processors
