// SPDX-License-Identifier: Apache-2.0

// Package sim runs the whole of berth in one process and in virtual time: its CRI service,
// controller, lanes, records in a real database, feed and containerd adapter, between a fake
// containerd, kernel, network and disk.
//
// # What stands for what
//
//   - [world.World] is everything outside berth. It outlives each berth, and a berth may be killed
//     between any two of its effects on the world.
//   - [Berth] is one life of berth, from its start to its death.
//   - [Story] is a world, the berth in it, and a client. A story is played from a script under
//     testdata (the verbs are listed at [Story.Play]), from code, or at random from a seed.
//   - An [Ending] is how a story ends. Each is played with both: a client that looks late, when
//     everything must be settled, and one that asks for everything at the instant at which nothing
//     is broken any more. From then on each call has a bound, also those that were made before,
//     because a wait that is much too long is over when a client looks late.
//   - [Watch] observes everything that berth reports, compares it with the truth, and notes each
//     broken promise.
//
// # To play
//
//	go test ./test/sim                          the scripts, the crashes, the seeds in testdata
//	go test ./test/sim -args -schedules 20000   that many random schedules, too
//	go test ./test/sim -args -schedules 20000 -vain    all of them with questions that fail
//	go test ./test/sim -args -schedules 20000 -from S  those of the seeds S, S+1, and so on
//	go test ./test/sim -args -seed S            the schedule of seed S instead of those in testdata
//	make sim ARGS='-bundle FILE'                the facts of a bundle of a node
//	go test ./test/sim -v -args -replays 1000   names the schedules that do not replay
//
// One process uses one processor; to use more, run more of them. With the race detector, as in
// `make test`, fewer orders, seeds of a range and instants of a kill are played; `make unit` and
// `make sim` play all of them.
//
// A script begins with a description of its subject. The file that ends with .golden has the result
// of playing it: each step with its number and its time, and the answers and events that a client
// and a subscriber got after it. `go test ./test/sim -run Scripts -update` rewrites these files.
//
// A bundle, which `berth bundle` has made of a node (package bundle), is played in the same way:
// see [Story.Replay]. Those in testdata/bundles are of faults on real machines, and those in
// testdata/planted of berths with a planted defect; `go test ./test/fault -run Bundle -update`
// makes them again, as root. Facts that a bundle lacks are not played: why a shim or a disk failed,
// other than that a settle or a deletion failed, and changes of a shim that were not reported to
// berth.
//
// # Promises
//
//   - The time is that of testing/synctest: waits do not make a story slower, and nothing is
//     asserted about real time.
//   - `go test ./test/sim` without arguments plays the same every time. A seed that fails while
//     exploring is printed. It is added to testdata/seeds, and the defect becomes a script, because
//     a seed plays something else as soon as berth or the simulation asks for turns in another
//     order.
//   - A seed fixes the calls of the client, the faults, and the order of everything that passes
//     between berth, the world and the client: a schedule that is repeated has the same effects in
//     the same order. Two things could make it differ. Of two timers that end at the same virtual
//     instant Go lets a random one be first, so no bound of the simulated berth is a multiple of
//     another (unevenly). And the order of goroutines between two turns inside berth is not fixed,
//     such as the choice of a select with several ready cases. On a machine that is busy, Go takes
//     the processor from a goroutine anywhere. So each attempt of a lane has a turn as it begins
//     and as it ends, and a request for a turn begins with a wait. A schedule that fails is
//     replayed 25 times all the same: the report tells how often it failed. -seed plays its
//     schedule up to 25 times, until it fails.
//
// # Not here
//
// Only berth's database is real, in a temporary directory. Real kernels, shims, runtimes, files and
// mounts are the subject of test/e2e and test/fault.
package sim
