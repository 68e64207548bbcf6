// SPDX-License-Identifier: Apache-2.0

// Bench measures berth beside containerd's own CRI plug-in: the containerd binary that is built
// from the same module, the same runc, shim, CNI plug-ins, images and CRI client. `make bench` runs
// it.
//
// # What it does
//
// The daemons take turns, round after round, each with directories of its own, so that a change of
// the machine affects both. Each measurement is a line in Go's benchmark format
// (golang.org/design/14313-benchmark-format), which benchstat reads: results.txt, with the picture
// exits.svg and the table results.benchstat. bench/RESULTS.md describes how each figure is
// measured.
//
// With -scale it fills one node of each daemon with more and more pods instead, and writes
// scale.txt, of which scale.svg is a picture. With -output it measures the output of a container
// alone, and writes output.txt. With -busy it measures ends on a node that does much else, and
// writes busy.txt. With -probes it measures the cost of the exec probes of 100 pods, and writes
// probes.txt. With -kubelets 200 so many clients call one node of each daemon as kubelets do, into
// kubelets.txt. With -tricks it measures berth alone, with each of its tricks (docs/tricks.md) on
// and off, and writes tricks.txt; with -runtime crun it measures berth with runc and with crun, and
// writes runtimes.txt.
//
// With -pulls it measures pulls of a large layer, of six, of many small files and of many images at
// once, from a registry that bounds the bytes per second of each connection, adds latency, and cuts
// connections. It writes pulls.txt, of which pulls.svg is a picture: the bytes on the wire, in
// files and in blobs over time.
//
// With -with crio it compares CRI-O as well, whose crio, conmon and pinns are in PATH: they are not
// built from this module.
//
// # What it promises
//
// Nothing is measured from inside a daemon: each figure is the view of a CRI client, or of the
// kernel. No sample is dropped. After each round all pods are removed through CRI, and anything
// that a daemon leaves behind is an error.
//
// # What it needs
//
// Root, and the output of `make tools build`. On a machine that does other work the figures mean
// little.
package main
