// SPDX-License-Identifier: Apache-2.0

// Bench measures berth beside containerd's own CRI plug-in: the containerd binary that is built from the same module, the
// same runc, shim, CNI plug-ins and images, the same plain CRI client. `make bench` runs it.
//
// # What it does
//
// Each daemon is started in turn, round after round, with directories of its own, so that a drift of the machine hits
// both. What is measured lands in RESULTS.md (a table and a verdict for each threshold), results.json (every sample) and
// *.svg (plots). `-plot` makes the first and the last anew from results.json.
//
// # What it promises
//
// Nothing is measured from inside a daemon: each figure is what a client of CRI sees, or what the kernel says of the
// daemon's process. Percentiles are nearest-rank over all samples of all rounds; no sample is dropped. A threshold that is
// not reached is said to be so; only with -strict is it an error. After each round all pods are removed through CRI, and
// what a daemon left behind is an error.
//
// # What it needs
//
// Root, and what `make tools build` builds. On a machine that does other things its figures mean little.
package main
