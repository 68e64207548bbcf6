// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"html"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The picture is a card with colours of its own, so that it can be read on any page. The card is
// dark if the viewer prefers dark pages.
const style = `
text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 13px; fill: #1f2328; }
.card { fill: #ffffff; stroke: #d0d7de; }
.title { font-size: 17px; font-weight: 600; }
.faint { fill: #59636e; font-size: 12px; }
.grid { stroke: #d8dee4; stroke-width: 1; }
.berth { fill: #1f6feb; stroke: #1f6feb; }
.containerd { fill: #d9730d; stroke: #d9730d; }
.crio { fill: #8250df; stroke: #8250df; }
circle.dot { stroke: none; fill-opacity: 0.38; }
polyline.line { fill: none; stroke-width: 2; }
.mark { stroke-width: 2.5; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.card { fill: #161b22; stroke: #30363d; }
.faint { fill: #9198a1; }
.grid { stroke: #30363d; }
.berth { fill: #58a6ff; stroke: #58a6ff; }
.containerd { fill: #f0883e; stroke: #f0883e; }
.crio { fill: #bc8cff; stroke: #bc8cff; }
}
text.berth, text.containerd, text.crio { stroke: none; font-weight: 600; }
`

// card is a picture that is being drawn.
type card struct{ strings.Builder }

// newCard begins a picture with its title, and an explanation of its axes.
func newCard(wide, high float64, title, axes string) *card {
	c := &card{}
	c.line(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img">`, wide, high, wide, high)
	c.line("<title>%s</title>\n<style>%s</style>", title, style)
	c.line(`<rect class="card" x="0.5" y="0.5" width="%g" height="%g" rx="8"/>`, wide-1, high-1)
	c.text(24, 34, "title", "start", title)
	c.text(24, 55, "faint", "start", axes)
	return c
}

func (c *card) line(format string, args ...any) { fmt.Fprintf(c, format+"\n", args...) }

func (c *card) text(x, y float64, class, anchor, s string) {
	c.line(`<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`, x, y, class, anchor, html.EscapeString(s))
}

// rows are the measurements in the picture.
var rows = []struct{ name, title string }{
	{killToExited, "kill to EXITED, polled"},
	{killToEvent, "kill to CONTAINER_STOPPED event"},
	{exitsAtOnce, "many exits at once: each"},
	{stuckOwn, "kill to EXITED, its own delete hangs 30 s"},
	{stuckOther, "kill to EXITED, others' deletes hang"},
	{killWhilePulling, "kill to EXITED while an image is pulled"},
}

const (
	width, left, right, top, row = 960., 300., 710., 92., 66.
	bottom                       = top + 6*row
)

// pictures are drawn from the samples of a file.
var pictures = []struct {
	of, name string
	draw     func(results string) string
}{
	{"results.txt", "exits.svg", picture},
	{"scale.txt", "scale.svg", growth},
	{"pulls.txt", "pulls.svg", arrivals},
}

// draw draws the pictures of which there are samples.
func draw(dir string) error {
	for _, c := range pictures {
		b, err := os.ReadFile(filepath.Join(dir, c.of))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, c.name), []byte(c.draw(string(b))), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// daemons are the names of the daemons in the samples, in the order that pictures have them in.
var daemons = []string{"berth", "containerd", "crio"}

// measured returns the daemons that results have samples of.
func measured(results string) (names []string) {
	for _, daemon := range daemons {
		if strings.Contains(results, "/daemon="+daemon+" ") {
			names = append(names, daemon)
		}
	}
	return names
}

// legend writes the names of daemons in their colours, at the right end of a picture's title.
func legend(text func(x, y float64, class, anchor, s string), wide float64, daemons []string) {
	x := wide - 24
	for _, name := range slices.Backward(daemons) {
		text(x, 34, name, "end", name)
		x -= 20 + 7.8*float64(len(name)) // about as wide as it is written
	}
}

// picture draws each exit as a dot, on a logarithmic axis.
func picture(results string) string {
	all, daemons := samples(results, "ns/op", 1e6), measured(results)
	from, to := decades(all)
	at := func(v float64) float64 {
		return left + min(math.Log(max(v, from)/from)/math.Log(to/from), 1)*(right-left)
	}
	w := newCard(width, bottom+42, "From the end of a process to everybody knowing",
		"every dot is one exit; the bar marks the median; logarithmic axis, further left is better")
	p, text := w.line, w.text
	legend(text, width, daemons)
	text(right+20, top-10, "faint", "start", "median")
	text(right+130, top-10, "faint", "start", "99th percentile")
	for d := from; d <= to*1.001; d *= 10 {
		p(`<line x1="%.1f" y1="%g" x2="%.1f" y2="%g" class="grid"/>`, at(d), top, at(d), bottom)
		text(at(d), bottom+18, "faint", "middle", short(d))
	}
	for i, r := range rows {
		y := top + row*float64(i)
		text(24, y+row/2+5, "", "start", r.title)
		share := 1 / float64(max(1, len(daemons))) // of the row
		for k, name := range daemons {
			mid := y + row*(0.06+0.88*share*(float64(k)+0.5))
			s := slices.Sorted(slices.Values(all[r.name][name]))
			for j, v := range s {
				p(`<circle cx="%.1f" cy="%.1f" r="2.6" class="%s dot"/>`, at(v), mid+(2*math.Mod(float64(j+1)*math.Phi, 1)-1)*row*0.3*share, name)
			}
			if len(s) > 0 {
				x := at(percentile(s, 50))
				p(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s mark"/>`, x, mid-row*0.38*share, x, mid+row*0.38*share, name)
				text(right+20, mid+5, name, "start", short(percentile(s, 50)))
				text(right+130, mid+5, name, "start", short(percentile(s, 99)))
			}
		}
	}
	return w.String() + "</svg>\n"
}

// decades returns the powers of ten between which all values of the picture are.
func decades(all map[string]map[string][]float64) (from, to float64) {
	var values []float64
	for _, r := range rows {
		for _, s := range slices.Collect(maps.Values(all[r.name])) {
			values = append(values, s...)
		}
	}
	if values = slices.DeleteFunc(values, func(v float64) bool { return v <= 0 }); len(values) == 0 {
		return 1, 10
	}
	from = math.Pow(10, math.Floor(math.Log10(slices.Min(values))))
	return from, max(10*from, math.Pow(10, math.Ceil(math.Log10(slices.Max(values)))))
}

// percentile returns the nearest-rank percentile: the smallest sample such that p percent of all
// samples are not larger.
func percentile(sorted []float64, p float64) float64 {
	return sorted[max(0, int(math.Ceil(p/100*float64(len(sorted))))-1)]
}

// short writes milliseconds with three digits. A longer time than bound was given up.
func short(ms float64) string {
	switch {
	case ms >= float64(bound.Milliseconds()):
		return fmt.Sprintf("> %.0f s", bound.Seconds())
	case ms >= 1000:
		return fmt.Sprintf("%.3g s", ms/1000)
	case ms < 0.99:
		return fmt.Sprintf("%.3g µs", ms*1000)
	}
	return fmt.Sprintf("%.3g ms", ms)
}
