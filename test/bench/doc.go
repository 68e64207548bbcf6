// SPDX-License-Identifier: Apache-2.0

// Bench measures berth beside containerd's own CRI plug-in: the containerd binary that is built
// from the same module, the same runc, shim, CNI plug-ins, images and CRI client. `make bench` runs
// it.
//
// # What it does
//
// The daemons take turns, round after round, each with directories of its own, so that a change of
// the machine affects both. The results are RESULTS.md (a table, and a verdict for each threshold),
// results.json (every sample) and *.svg (plots). `-plot` writes the first and the last again from
// results.json.
//
// With -scale it fills one node of each daemon with more and more pods instead, and writes SCALE.md
// and scale.json.
//
// # What it promises
//
// Nothing is measured from inside a daemon: each figure is what a CRI client sees, or what the
// kernel says about the daemon's process. Only trace.svg shows the inside, of a berth of its own
// that sends traces. Percentiles are nearest-rank over all samples of all rounds; no sample is
// dropped. A threshold that is not reached is reported, and is an error only with -strict. After
// each round all pods are removed through CRI, and whatever a daemon leaves behind is an error.
//
// # What it needs
//
// Root, and the output of `make tools build`. On a machine that does other work the figures mean
// little.
package main
