// SPDX-License-Identifier: Apache-2.0

// Package kernelclock asks the kernel for its clocks, and to be told when the wall clock is set. It
// is the source of package clock on a node.
//
// # Promises
//
//   - The time since boot goes on while the machine is suspended (CLOCK_BOOTTIME), and neither it
//     nor its distance from wall time changes except by a step: NTP slews both alike.
//   - A step is told at once (timerfd_create(2), TFD_TIMER_CANCEL_ON_SET), and costs nothing until
//     there is one.
//
// # Never
//
// It sets no clock.
//
// # To look at it live
//
// In /proc/PID/fdinfo of berth, a timerfd with the clock 0.
package kernelclock
