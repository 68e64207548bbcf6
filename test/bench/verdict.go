// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// verdict is what became of one threshold.
type verdict struct {
	threshold string
	measured  string
	reached   bool
}

// notSlower are the operations none of which may be slower than containerd's, by their medians: the 99th percentile of
// some dozens of calls is their slowest one, which tells more of the machine than of the daemon.
var notSlower = []string{runPod, createContainer, startContainer, stopContainer, removeContainer, stopPod, removePod, wholeLife, listContainers, runPodsAtOnce, restart}

// verdicts compares what was measured with what is to be reached. What was not measured is not reached.
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
		atMost(r, memory50, "memory of the daemon at "+num(r.Sizes.Total)+" pods: p50 no more than containerd's", 50, 1),
	}
	for _, m := range notSlower {
		out = append(out, atMost(r, m, titles[m]+": p50 no slower than containerd's", 50, 1))
	}
	return out
}

// atMost compares berth's percentile with a share of containerd's.
func atMost(r *results, metric, threshold string, p, share float64) verdict {
	unit := "ms"
	if strings.HasPrefix(metric, "memory") {
		unit = "MiB"
	}
	b, c := percentile(r.of(metric, "berth"), p), percentile(r.of(metric, "containerd"), p)
	ratio := b / c // NaN if one was not measured, which is not reached
	return verdict{
		threshold: threshold, reached: ratio <= share,
		measured: fmt.Sprintf("%s to %s: %s", value(b, unit, r.Bound), value(c, unit, r.Bound), ratioText(b, c, r.Bound, unit)),
	}
}

func allReached(vs []verdict) bool {
	return !slices.ContainsFunc(vs, func(v verdict) bool { return !v.reached })
}

// value writes a sample with three digits, and one that is the bound as more than that. No bound: 0.
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

// ratioText writes berth's share of containerd's.
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
