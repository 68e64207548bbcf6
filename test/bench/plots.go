// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
)

const (
	plotWidth = 960.
	plotLeft  = 300.
	plotRight = 710.
	plotTop   = 92. // of the first row
)

// plots returns all pictures by file name.
func plots(r *results) map[string]string {
	all := map[string]string{"exits.svg": plotExits(r), "operations.svg": plotOperations(r), "memory.svg": plotMemory(r)}
	if len(r.Trace) > 0 {
		all["trace.svg"] = plotWaterfall(r.Trace)
	}
	return all
}

// measured returns the metrics of a group that have samples, without those that are left out.
func measured(r *results, group string, without ...string) (list []metric, values []float64) {
next:
	for _, m := range metrics(r.Sizes) {
		for _, w := range without {
			if m.key == w {
				continue next
			}
		}
		b, c := r.of(m.key, "berth"), r.of(m.key, "containerd")
		if m.group == group && len(b)+len(c) > 0 {
			list, values = append(list, m), append(append(values, b...), c...)
		}
	}
	return list, values
}

// plotExits draws every sample as a dot, on a logarithmic axis.
func plotExits(r *results) string {
	const row = 66.
	list, values := measured(r, exits, exitsLast)
	bottom := plotTop + row*float64(len(list))
	p := newPicture(plotWidth, bottom+42, "From the end of a process to everybody knowing", "every dot is one exit; the bar marks the median; logarithmic axis, further left is better")
	p.legend()
	a := logAxis(values, plotLeft, plotRight)
	p.text(plotRight+20, plotTop-10, "faint", "start", "median")
	p.text(plotRight+130, plotTop-10, "faint", "start", "99th percentile")
	bands(p, len(list), row)
	a.draw(p, plotTop, bottom)
	for i, m := range list {
		y := plotTop + row*float64(i)
		p.text(24, y+row/2+5, "", "start", m.title)
		for k, name := range []string{"berth", "containerd"} {
			mid := y + row*(0.28+0.44*float64(k))
			s := r.of(m.key, name)
			for j, v := range s {
				p.circle(a.at(v), mid+jitter(j)*row*0.15, 2.6, name+" dot")
			}
			if len(s) == 0 {
				continue
			}
			x := a.at(percentile(s, 50))
			p.line(x, mid-row*0.19, x, mid+row*0.19, name+" mark")
			p.text(plotRight+20, mid+5, name, "start", value(percentile(s, 50), m.unit, r.Bound))
			p.text(plotRight+130, mid+5, name, "start", value(percentile(s, 99), m.unit, r.Bound))
		}
	}
	return p.end()
}

// jitter spreads dots evenly over [-1, 1], the same way in each picture.
func jitter(i int) float64 { return 2*math.Mod(float64(i+1)*math.Phi, 1) - 1 }

func bands(p *picture, rows int, height float64) {
	for i := 0; i < rows; i += 2 {
		p.rect(12, plotTop+height*float64(i), p.width-24, height, "band")
	}
}

// plotOperations draws medians, and a line to the 99th percentile.
func plotOperations(r *results) string {
	const row = 46.
	list, values := measured(r, operations)
	bottom := plotTop + row*float64(len(list))
	p := newPicture(plotWidth, bottom+42, "How long operations take", "dots are medians, lines reach to the 99th percentile; logarithmic axis, further left is better")
	p.legend()
	a := logAxis(values, plotLeft, plotRight)
	p.text(plotRight+20, plotTop-10, "faint", "start", "median")
	p.text(plotRight+130, plotTop-10, "faint", "start", "berth's share")
	bands(p, len(list), row)
	a.draw(p, plotTop, bottom)
	for i, m := range list {
		y := plotTop + row*float64(i)
		p.text(24, y+row/2+5, "", "start", m.title)
		for k, name := range []string{"berth", "containerd"} {
			s := r.of(m.key, name)
			if len(s) == 0 {
				continue
			}
			mid := y + row*(0.30+0.40*float64(k))
			p50, p99 := percentile(s, 50), percentile(s, 99)
			p.line(a.at(p50), mid, a.at(p99), mid, name+" whisker")
			p.line(a.at(p99), mid-4, a.at(p99), mid+4, name+" whisker")
			p.circle(a.at(p50), mid, 5.5, name)
			p.text(plotRight+20, mid+5, name, "start", value(p50, m.unit, 0))
		}
		p.text(plotRight+130, y+row/2+5, "", "start", ratioText(percentile(r.of(m.key, "berth"), 50), percentile(r.of(m.key, "containerd"), 50), 0, m.unit))
	}
	return p.end()
}

// plotMemory draws medians as bars from zero.
func plotMemory(r *results) string {
	const row = 66.
	list, values := measured(r, memory, memory0+rss, memory50+rss, shims50)
	bottom := plotTop + row*float64(len(list))
	p := newPicture(plotWidth, bottom+42, "Memory of the daemon", "proportional set size (PSS): bars are medians, dots are the rounds; shorter is better")
	p.legend()
	bands(p, len(list), row)
	largest := 1.
	for _, v := range values {
		largest = max(largest, v)
	}
	step := math.Pow(10, math.Floor(math.Log10(largest)))
	switch {
	case largest/step < 3:
		step /= 2
	case largest/step > 6:
		step *= 2
	}
	a := axis{to: math.Ceil(largest/step) * step, x0: plotLeft, x1: plotRight}
	for v := 0.; v <= a.to*1.001; v += step {
		p.line(a.at(v), plotTop, a.at(v), bottom, "grid")
		p.text(a.at(v), bottom+18, "faint", "middle", fmt.Sprintf("%g MiB", v))
	}
	for i, m := range list {
		y := plotTop + row*float64(i)
		p.text(24, y+row/2+5, "", "start", m.title)
		for k, name := range []string{"berth", "containerd"} {
			s := r.of(m.key, name)
			if len(s) == 0 {
				continue
			}
			mid := y + row*(0.29+0.42*float64(k))
			p.rect(plotLeft, mid-10, a.at(percentile(s, 50))-plotLeft, 20, name+" dot")
			for _, v := range s {
				p.circle(a.at(v), mid, 3, name)
			}
			p.text(plotRight+20, mid+5, name, "start", value(percentile(s, 50), m.unit, 0))
		}
	}
	return p.end()
}
