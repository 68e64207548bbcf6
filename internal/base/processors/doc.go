// SPDX-License-Identifier: Apache-2.0

// Package processors says how many processors berth may use, lets it run Go code on more threads than
// that, and lets what takes long give way to what somebody waits for.
//
// # The trick
//
// Go runs at most GOMAXPROCS goroutines at a time, by default one for each processor. When all of
// them compute, as they do where an image is fetched and hashed, nobody waits for the network or
// for epoll any more: one thread of the runtime asks the kernel for news every ten milliseconds,
// and whatever it finds waits in a queue behind goroutines that run for ten milliseconds each. The
// end of a process goes from goroutine to goroutine, and pays that several times. With some spare
// threads the kernel decides who runs, and it favours whoever has slept: that is what an end needs.
//
// It relies on how Go schedules goroutines, and on how Linux schedules threads.
// tricks.spare_threads turns it off; what it buys is in docs/tricks.md. Delete it when Go waits for
// the network while all its threads compute (https://github.com/golang/go/pull/51651).
//
// It has a price: the garbage collector of Go uses up to a quarter of the threads, and counts the
// spare ones.
//
// # What gives way
//
// [Behind] and [Yield] are no trick: the kernel offers what they ask it for, from Linux 6.12 on.
//
// # Promises
//
//   - [Count] does not change when there are spare threads: what berth sizes by the processors
//     stays as it is.
//   - There are none where a person or the control group's quota has decided how many processors
//     berth uses: then more threads would only use up the quota sooner.
//   - What is done by [Behind] gets as much of the processors as it would otherwise, and its thread is
//     as it was before when it is done.
package processors
