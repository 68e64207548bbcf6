// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// verdict says whether a threshold is reached, and by what.
type verdict struct {
	threshold string
	measured  string
	reached   bool
}

// notSlower are the operations that may not be slower than containerd's. Their medians are
// compared: the 99th percentile of some dozens of calls is the slowest call, which says more about
// the machine than about the daemon.
var notSlower = []string{runPod, createContainer, startContainer, stopContainer, removeContainer, stopPod, removePod, wholeLife, listContainers, listStats, execSync, pullImage, runPodsAtOnce, restart}

// verdicts compares the samples with the thresholds. A threshold without samples is not reached.
func verdicts(r *results) []verdict {
	titles := map[string]string{}
	for _, m := range metrics(r.Sizes) {
		titles[m.key] = m.title
	}
	p99 := percentile(r.of(killToExited, "berth"), 99)
	out := []verdict{
		atMost(r, killToExited, "kill to EXITED: p99 at most a fifth of containerd's", 99, 1./5),
		{"kill to EXITED: p99 under 10 ms, on an idle machine", fmt.Sprintf("%s, load %.2f before the run", value(p99, "ms", 0), r.Load[0]), p99 < 10},
		atMost(r, stuckOwn, "kill to EXITED while its delete hangs: slowest at most a hundredth of containerd's slowest", 100, 1./100),
		atMost(r, runPod, "RunPodSandbox: p50 at most 0.7 of containerd's", 50, 0.7),
		withinCNI(r),
		atMost(r, podRunning, "RunPodSandbox, CreateContainer and StartContainer: p50 at most 0.65 of containerd's", 50, 0.65),
		atMost(r, runPodsAtOnce, titles[runPodsAtOnce]+": p50 at most half of containerd's", 50, 0.5),
		atMost(r, wholeLife+cpu, "processor time of a pod's life, with shims, runc and plug-ins: at most 0.6 of containerd's", 50, 0.6),
		atMost(r, listCrowd, titles[listCrowd]+": p50 at most a third of containerd's", 50, 1./3),
		atMost(r, memory50, "memory of the daemon at "+num(r.Sizes.Total)+" pods: p50 no more than containerd's", 50, 1),
	}
	for _, m := range notSlower {
		out = append(out, atMost(r, m, titles[m]+": p50 no slower than containerd's", 50, 1))
	}
	return out
}

// withinCNI compares RunPodSandbox with what its CNI plug-ins take alone.
func withinCNI(r *results) verdict {
	run, alone := percentile(r.of(runPod, "berth"), 50), percentile(r.of(cniAlone, "berth"), 50)
	return verdict{
		threshold: "RunPodSandbox: p50 at most 5 ms more than its CNI plug-ins take alone",
		measured:  fmt.Sprintf("%s and %s", value(run, "ms", 0), value(alone, "ms", 0)),
		reached:   run-alone <= 5,
	}
}

// atMost compares berth's percentile with a share of containerd's.
func atMost(r *results, metric, threshold string, p, share float64) verdict {
	unit := "ms"
	if strings.HasPrefix(metric, "memory") {
		unit = "MiB"
	}
	b, c := percentile(r.of(metric, "berth"), p), percentile(r.of(metric, "containerd"), p)
	ratio := b / c // NaN if one was not measured; a comparison with NaN is false
	return verdict{
		threshold: threshold, reached: ratio <= share,
		measured: fmt.Sprintf("%s to %s: %s", value(b, unit, r.Bound), value(c, unit, r.Bound), ratioText(b, c, r.Bound, unit)),
	}
}

func allReached(vs []verdict) bool {
	return !slices.ContainsFunc(vs, func(v verdict) bool { return !v.reached })
}

// value formats a sample with three digits. A sample that is at the bound is written as more than
// the bound; a bound of 0 means that there is none.
func value(v float64, unit string, bound float64) string {
	more := ""
	switch {
	case math.IsNaN(v):
		return "not measured"
	case unit == "ms" && bound > 0 && v >= bound:
		more = "> "
		fallthrough
	case unit == "ms" && v >= 1000:
		v, unit = v/1000, "s"
	}
	switch {
	case v >= 100 || more != "":
		return fmt.Sprintf("%s%.0f %s", more, v, unit)
	case v >= 10:
		return fmt.Sprintf("%.1f %s", v, unit)
	default:
		return fmt.Sprintf("%.2f %s", v, unit)
	}
}

// ratioText formats berth's value as a share of containerd's.
func ratioText(b, c, bound float64, unit string) string {
	ratio, less := b/c, ""
	if unit == "ms" && bound > 0 && c >= bound {
		less = "< "
	}
	switch {
	case math.IsNaN(ratio):
		return "–"
	case ratio < 0.001:
		return fmt.Sprintf("%s%.5f", less, ratio)
	case ratio < 0.1:
		return fmt.Sprintf("%s%.3f", less, ratio)
	default:
		return fmt.Sprintf("%s%.2f", less, ratio)
	}
}
