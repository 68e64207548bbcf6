// SPDX-License-Identifier: Apache-2.0

// Package durable keeps a power cut from making images wrong. containerd names a layer before the
// files of the layer are on the disk: after a cut the image is listed, and its files are empty.
//
// A layer or a blob that is new lacks a mark until it is on the disk, which is seen to in the
// background. After an unclean boot an item without the mark is doubted: it is checked before it is
// used, and repaired or removed if it is wrong.
//
// # Promises
//
//   - An item was on the disk before it got the mark.
//   - After a boot that did not follow a clean stop, each item without the mark is checked before a
//     container gets it. A container waits for the layers that it needs, and for no other.
//   - A check that could not be made is not taken for an answer: it is made again.
//   - A later successful sync does not make a layer trusted: the kernel reports a failed write only
//     once. A layer whose sync has failed or was cut off gets no mark in this boot, from no berth,
//     unless it is written again, and a stop is not a clean one. The same holds if berth cannot
//     note which layer is about to be synced.
//   - Nothing is synced or indexed while an image is being pulled, imported or unpacked, for a
//     minute at most.
//   - A file system that was mounted again within a boot counts as booted, because the kernel has
//     lost its unwritten pages. Each life of it is told apart, through any mount (life.go).
//   - A kill of berth on the same boot makes nothing doubtful, because the kernel still has its
//     pages.
//
// # Never
//
// It does not know containerd: package imagestore finds the layers, and repairs them. It promises
// nothing for writable layers, which no container uses after a boot.
//
// It does not see a write that fails in the background if the file then leaves the kernel's memory
// before it is synced: the kernel has forgotten the error. A clean stop does: syncfs reports such
// writes from Linux 5.8 on. On an older kernel a stop while something lacks the mark is not a clean
// one.
//
// # To look at it live
//
// The file boot in berth's root directory says which boot the images were made in, whether they are
// doubted, and which layers are being synced or could not be. The index of a layer is the file
// berth-index beside its directory. A layer or a blob that is on the disk has the label
// berth/durable:
//
//	ctr --address /run/berth/containerd/containerd.sock -n k8s.io snapshots info CHAIN-ID
//
// # Files
//
// items.go draws how a layer comes to the disk, and has the state of each. keeper.go syncs, marks
// and checks them. boot.go tells an unclean boot, and life.go the lives of a file system within
// one. early.go begins the writeback of an image while it is fetched, so that nothing else waits
// behind all of it. index.go writes down the files of a layer and compares the layer with that, and
// sync.go puts a layer onto the disk: both work in the process that package unpack starts.
package durable
