// SPDX-License-Identifier: Apache-2.0

// Package powercut cuts the power of a node at any instant of pulls and imports: berth's root
// directory is a file system in a file, which the kernel shuts down without further writes, as in a
// power cut. Then it is mounted again and berth is started, as after a boot.
//
// BERTH_CUTS is how often the random test does that; without it, four times, or twice where nothing
// of what keeps images has changed for five commits. BERTH_CUTS_FS is the file system: ext4, or
// xfs. With BERTH_WITHHELD set, the random test runs a berth that gives the mark to what it has not
// synced, and has to fail. BERTH_SEED plays a run again as far as instants can be.
package powercut
