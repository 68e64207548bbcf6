// SPDX-License-Identifier: Apache-2.0

// Package clock makes the instants that berth keeps, and wall time from them.
//
// Wall time is set: by NTP after a boot without a battery, by a person, by a machine that resumes.
// So neither an order nor a duration nor an age is ever taken from it. An [Instant] is a place on a
// line of the node's own, which grows with the time since boot, also while the machine is
// suspended, and never steps. Each boot has its own part of that line, behind those of all boots
// before, so that an instant is a boot and the time since then in one number.
//
// # Promises
//
//   - Two instants are in the order in which they were made, through settings of the wall clock,
//     restarts of berth, and reboots. [Clock.Next] never returns one twice.
//   - [Clock.Wall] is made with the offset of now: an instant from before the clock was right is
//     shown right once it is. Within a boot, the wall time of an instant changes at a step only:
//     the kernel slews both clocks alike.
//   - Wall keeps the order. No stamp of an earlier boot is shown later than the beginning of the
//     next one.
//   - [Clock.Age] counts the time that the node has lived: neither a step nor the time between two
//     boots makes anything older.
//   - The line begins where wall time was when berth looked first. So an instant of a record has
//     the form of a wall time: berths that know no instants read it, and their records are read.
//
// # Never
//
// It does not follow the wall clock by itself: [Clock.Run] waits for the [Source] to tell of a
// step. It starts no process, and imports only the way to write a file.
//
// # To look at it live
//
// The file clock.json of the state has the boots: each with its part of the line and its offset.
package clock
