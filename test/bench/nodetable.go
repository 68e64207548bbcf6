// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// scaled measures with -scale, or with plot reads what was measured, and writes SCALE.md.
func scaled(ctx context.Context, build, dir string, pods int, only string, plot bool, out, progress io.Writer) error {
	path := filepath.Join(dir, "scale.json")
	r, err := readResults(path)
	if !plot {
		b := &bench{build: build, only: only, progress: progress, results: newResults(sizes{})}
		b.results.Nodes = counts(pods)
		_, err = b.measured(ctx, b.runNodes)
		r = b.results
		if len(r.Samples) > 0 { // also those of a run that failed or was interrupted
			err = errors.Join(err, os.MkdirAll(dir, 0o755), r.write(path))
		}
	}
	if err != nil {
		return err
	}
	md := nodeTable(r)
	fmt.Fprint(out, md)
	return os.WriteFile(filepath.Join(dir, "SCALE.md"), []byte(md), 0o644)
}

// nodeTable returns the text of SCALE.md.
func nodeTable(r *results) string {
	var w strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&w, format, args...) }
	p("# A node with many pods\n\nMeasured by `make bench ARGS=-scale` on %s in %s; the one-minute load average was %.2f before and %.2f after.\n",
		r.At.Format("2 January 2006, 15:04 MST"), r.Took, r.Load[0], r.Load[1])
	p("\n| | |\n| --- | --- |\n")
	for _, f := range r.Machine {
		p("| %s | %s |\n", f.What, f.Is)
	}
	for _, name := range []string{"berth", "containerd", "runc"} {
		p("| %s | %s |\n", name, cmp.Or(r.Versions[name], "not measured"))
	}
	if len(r.Nodes) == 0 {
		return w.String()
	}
	top := r.Nodes[len(r.Nodes)-1]
	p("\n## What was to be reached, with %d pods\n\n| threshold | | |\n| --- | --- | --- |\n", top)
	for _, v := range nodeVerdicts(r) {
		word := "reached"
		if !v.reached {
			word = "**not reached**"
		}
		p("| %s | %s | %s |\n", v.threshold, v.measured, word)
	}
	p("\n## Growth\n\nThe median of all samples. Growth is the power of the number of pods with which berth's value grows\nfrom the smallest node to the largest: 0 is constant, 1 is linear.\n\n| |")
	for _, name := range []string{"berth", "containerd"} {
		for _, pods := range r.Nodes {
			p(" %s, %d pods |", name, pods)
		}
	}
	p(" growth |\n| --- |%s\n", strings.Repeat(" ---: |", 2*len(r.Nodes)+1))
	for _, m := range nodeMetrics() {
		p("| %s |", m.title)
		for _, name := range []string{"berth", "containerd"} {
			for _, pods := range r.Nodes {
				p(" %s |", value(percentile(r.of(at(m.key, pods), name), 50), m.unit, 0))
			}
		}
		p(" %s |\n", growthText(r, m.key))
	}
	p(`
## How

Both daemons run as for [RESULTS.md](RESULTS.md), one after the other, each on one node that is filled
step by step: %d pods at a time are made, each with %d containers that sleep. At each step the daemon is
left alone for %s, then everything is listed and the status of each pod and container is asked for,
then a container is killed every second, %d in all, while a client listens to the events. Then the
daemon is killed with SIGKILL and started again; it is ready when Status says so and ListContainers
reports every container that runs as running. The processor time until %s later includes the
comparison of all records with what there is, which berth repeats every five minutes. At last all pods
are stopped and removed. Whatever is left behind after that, of processes, mounts, cgroups and packet
filter rules, is an error. All samples are in [scale.json](scale.json).
`, fillAtOnce, perPod, idleWindow, exitsAtScale, idleWindow)
	return w.String()
}

// growth returns the power of the number of pods with which a value of berth's grows.
func growth(r *results, key string) float64 {
	first, last := r.Nodes[0], r.Nodes[len(r.Nodes)-1]
	a, b := percentile(r.of(at(key, first), "berth"), 50), percentile(r.of(at(key, last), "berth"), 50)
	return math.Log(b/a) / math.Log(float64(last)/float64(first))
}

func growthText(r *results, key string) string {
	if g := growth(r, key); !math.IsNaN(g) && !math.IsInf(g, 0) {
		return fmt.Sprintf("%.2f", g)
	}
	return "–"
}

// nodeVerdicts compares the samples with the thresholds. A threshold without samples is not
// reached.
func nodeVerdicts(r *results) []verdict {
	top := r.Nodes[len(r.Nodes)-1]
	p50 := func(key, name string) float64 { return percentile(r.of(at(key, top), name), 50) }
	idle, boot := atMost(r, at(idleCPU, top), "processor at rest: at most a fifth of containerd's", 50, 1./5), p50(bootTime, "berth")
	idle.measured = fmt.Sprintf("%s to %s", value(p50(idleCPU, "berth"), "% of a core", 0), value(p50(idleCPU, "containerd"), "% of a core", 0))
	worst, which := math.Inf(-1), ""
	for _, m := range nodeMetrics() {
		if g := growth(r, m.key); g > worst && !math.IsInf(g, 0) {
			worst, which = g, m.title
		}
	}
	return []verdict{
		idle,
		{"kill -9 and start to ready: within 1 s", value(boot, "ms", 0), boot <= 1000},
		{"nothing grows faster than linearly: a power of 1.1 at most", fmt.Sprintf("%.2f: %s", worst, which), worst <= 1.1 && which != ""},
	}
}
