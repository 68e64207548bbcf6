// SPDX-License-Identifier: Apache-2.0

// Package unpack writes the layers of images into directories. A layer comes from the builder of
// the image, and decides how much memory it takes to read it: a layer of a hundred kilobytes can
// ask for a gibibyte, or have millions of names. So each layer is unpacked by a process of its own,
// and not by berth, which the OOM killer spares.
//
// # Promises
//
//   - A layer whose process has used more than [Memory] bytes of memory, besides what it used
//     before it read the layer, is an error. That is looked at every 10 ms and at the end. Between
//     two looks the kernel lets the process map at most 1280 MiB of data more than before, which is
//     twice Memory, and a share that Go maps and does not use. It starts no other program but
//     igzip, whose memory counts.
//   - As many layers as processors, three at least, are unpacked at the same time, those of all
//     images together. One image never has all of these slots.
//   - The process is among the first that the OOM killer ends, and has a lower priority than berth
//     for the processors and the disk. On Linux 6.12 or newer a thread of berth that wakes up gets
//     the processor from it at once.
//   - The process reaches no network, has no capability that writing files does not take, and opens
//     only files below the directories of the layer, its parents and its index, if the kernel has
//     Landlock (Linux 5.19, see [Fence]).
//   - A large layer of gzip is decompressed by igzip, if the host has that and it works. It is
//     another user without capabilities and network, opens only the libraries of the host, and ends
//     with the process. If it cannot be started, Go decompresses.
//   - The kernel writes back unpacked files while it unpacks the rest. It opens nothing for that
//     but regular files below the directory.
//   - If the process ends or panics, that is an error of its layer, and of nothing else.
//   - The process ends with the context of its call, and with berth: it has no more of the layer to
//     read then.
//
// # Never
//
// It does not mount, except in berth for a snapshotter that returns neither an overlay nor a bind
// mount. It does not compare the digest of a layer: its caller does.
//
// # To look at it live
//
// The process is called berth-unpack. It is this program again, and takes over in an init function
// of this package.
package unpack
