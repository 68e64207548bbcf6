// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// panel is one figure of a node that fills, over the number of its pods.
type panel struct {
	title string
	names []string // of the samples, whose medians are added
	unit  string   // of the samples
	write func(v float64) string
}

// panels are the parts of the picture. A cost that is proportional to the pods is a straight line
// in it.
var panels = []panel{
	{"a pod with two containers is made", []string{"MakePod"}, "ns/op", nanoseconds},
	{"the states of all pods, one after the other", []string{"Relist"}, "ns/op", nanoseconds},
	{"kill of the daemon to ready", []string{"KillToReady"}, "ns/op", nanoseconds},
	{"kill of a container to its event", []string{"KillToEvent"}, "ns/op", nanoseconds},
	{"processor of the daemon at rest", []string{"AtRest"}, "%core", func(v float64) string { return fmt.Sprintf("%.3g %%", v) }},
	{"memory of daemon and shims (PSS)", []string{"Memory", "Memory/shims"}, "pss-B", mebibytes},
}

func nanoseconds(v float64) string { return short(v / 1e6) }

func mebibytes(v float64) string {
	if v >= 1<<30 {
		return fmt.Sprintf("%.3g GiB", v/(1<<30))
	}
	return fmt.Sprintf("%.0f MiB", v/(1<<20))
}

// point is a figure at a number of pods.
type point struct{ pods, value float64 }

// figures reads the points of a panel from results: by daemon, in the order of the pods. A figure
// that was measured with only some numbers of pods has no other points.
func (l panel) figures(results string) map[string][]point {
	all := map[string][]point{}
	whole := samples(results, l.unit, 1)
	for _, daemon := range daemons {
		for _, pods := range podCounts(whole, l.names[0]) {
			sum, parts := 0.0, 0
			for _, name := range l.names {
				if s := whole[fmt.Sprintf("%s/pods=%d", name, pods)][daemon]; len(s) > 0 {
					sum += percentile(slices.Sorted(slices.Values(s)), 50)
					parts++
				}
			}
			if parts == len(l.names) {
				all[daemon] = append(all[daemon], point{float64(pods), sum})
			}
		}
	}
	return all
}

// podCounts returns the numbers of pods with which a figure was measured, the fewest first.
func podCounts(all map[string]map[string][]float64, name string) (counts []int) {
	for key := range all {
		if count, ok := strings.CutPrefix(key, name+"/pods="); ok {
			if pods, err := strconv.Atoi(count); err == nil {
				counts = append(counts, pods)
			}
		}
	}
	slices.Sort(counts)
	return counts
}

const (
	perRow      = 3
	panelWidth  = 300.
	panelHeight = 214.
	plotWidth   = 206. // the rest has the values at the end of the lines
	plotHeight  = 150.
	head        = 84.
)

// growth draws the panels. Both axes are linear and begin at nothing.
func growth(results string) string {
	wide, high := 30+perRow*panelWidth, head+panelHeight*math.Ceil(float64(len(panels))/perRow)
	w := newCard(wide, high, "A node that fills", "over the number of pods with two containers each; linear axes, lower is better")
	p, text := w.line, w.text
	for i, l := range panels {
		x, y := 24+panelWidth*float64(i%perRow), head+panelHeight*float64(i/perRow)
		all := l.figures(results)
		text(x, y+8, "", "start", l.title)
		most, top := 1., 0.
		for _, points := range all {
			for _, at := range points {
				most, top = max(most, at.pods), max(top, at.value)
			}
		}
		if top == 0 {
			continue // it was not measured
		}
		ground := y + 20 + plotHeight
		place := func(at point) (float64, float64) {
			return x + at.pods/most*plotWidth, ground - at.value/top*plotHeight
		}
		p(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="grid"/>`, x, ground, x+plotWidth, ground)
		ticks := map[float64]bool{}
		var ends []end
		for _, daemon := range daemons {
			if len(all[daemon]) == 0 {
				continue
			}
			var line []string
			for _, at := range all[daemon] {
				px, py := place(at)
				line = append(line, fmt.Sprintf("%.1f,%.1f", px, py))
				p(`<circle cx="%.1f" cy="%.1f" r="3" class="%s"/>`, px, py, daemon)
				ticks[at.pods] = true
			}
			p(`<polyline points="%s" class="%s line"/>`, strings.Join(line, " "), daemon)
			last := all[daemon][len(all[daemon])-1]
			_, py := place(last)
			ends = append(ends, end{daemon, py, l.write(last.value)})
		}
		for _, pods := range slices.Sorted(maps.Keys(ticks)) {
			px, _ := place(point{pods: pods})
			text(px, ground+17, "faint", "middle", fmt.Sprintf("%g", pods))
		}
		for _, e := range apart(ends) {
			text(x+plotWidth+8, e.y+4, e.daemon, "start", e.says)
		}
	}
	legend(text, wide, measured(results))
	return w.String() + "</svg>\n"
}

// end is the label at the end of a line.
type end struct {
	daemon string
	y      float64
	says   string
}

// apart moves overlapping labels upwards.
func apart(ends []end) []end {
	const least = 15
	slices.SortFunc(ends, func(a, b end) int { return cmp.Compare(b.y, a.y) })
	for i := 1; i < len(ends); i++ {
		ends[i].y = min(ends[i].y, ends[i-1].y-least)
	}
	return ends
}
