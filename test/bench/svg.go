// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"math"
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
.minor { stroke: #eef1f4; stroke-width: 1; }
.band { fill: #f6f8fa; }
.berth { fill: #1f6feb; stroke: #1f6feb; }
.containerd { fill: #d9730d; stroke: #d9730d; }
circle.dot, rect.dot { stroke: none; fill-opacity: 0.38; }
.strong { font-weight: 600; }
.call { fill: #59636e; }
.span { fill: #1f6feb; }
.commit { fill: #cf222e; }
.program { fill: #bf8700; }
.mark { stroke-width: 2.5; }
.whisker { stroke-width: 2; stroke-opacity: 0.55; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.card { fill: #161b22; stroke: #30363d; }
.faint { fill: #9198a1; }
.grid { stroke: #30363d; }
.minor { stroke: #21262d; }
.band { fill: #1c2128; }
.berth { fill: #58a6ff; stroke: #58a6ff; }
.containerd { fill: #f0883e; stroke: #f0883e; }
.call { fill: #9198a1; }
.span { fill: #58a6ff; }
.commit { fill: #ff7b72; }
.program { fill: #d29922; }
}
text.berth, text.containerd { stroke: none; font-weight: 600; }
`

// picture collects the elements of an SVG document.
type picture struct {
	strings.Builder
	width, height float64
}

func newPicture(width, height float64, title, subtitle string) *picture {
	p := &picture{width: width, height: height}
	fmt.Fprintf(p, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(p, "<title>%s</title>\n<style>%s</style>\n", html.EscapeString(title), style)
	fmt.Fprintf(p, `<rect class="card" x="0.5" y="0.5" width="%g" height="%g" rx="8"/>`+"\n", width-1, height-1)
	p.text(24, 34, "title", "start", title)
	p.text(24, 55, "faint", "start", subtitle)
	return p
}

func (p *picture) text(x, y float64, class, anchor, s string) {
	fmt.Fprintf(p, `<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`+"\n", x, y, class, anchor, html.EscapeString(s))
}

func (p *picture) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(p, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`+"\n", x1, y1, x2, y2, class)
}

func (p *picture) rect(x, y, w, h float64, class string) {
	fmt.Fprintf(p, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="%s"/>`+"\n", x, y, w, h, class)
}

func (p *picture) circle(x, y, r float64, class string) {
	fmt.Fprintf(p, `<circle cx="%.1f" cy="%.1f" r="%.1f" class="%s"/>`+"\n", x, y, r, class)
}

// legend draws the names of the daemons at the top right.
func (p *picture) legend() {
	x := p.width - 24
	for _, name := range []string{"containerd", "berth"} {
		p.text(x, 34, name, "end", name)
		x -= 8*float64(len(name)) + 14
		p.circle(x+6, 30, 5, name)
		x -= 14
	}
}

func (p *picture) end() string { return p.String() + "</svg>\n" }

// axis is a logarithmic axis of milliseconds, or a linear axis from zero.
type axis struct {
	from, to float64 // values
	x0, x1   float64 // places
	log      bool
}

// logAxis returns an axis that covers all values, in whole decades.
func logAxis(values []float64, x0, x1 float64) axis {
	from, to := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		if v > 0 {
			from, to = min(from, v), max(to, v)
		}
	}
	if from > to { // nothing was measured
		from, to = 1, 10
	}
	a := axis{math.Pow(10, math.Floor(math.Log10(from))), math.Pow(10, math.Ceil(math.Log10(to))), x0, x1, true}
	if a.from == a.to {
		a.to *= 10
	}
	return a
}

func (a axis) at(v float64) float64 {
	share := v / a.to
	if a.log {
		share = math.Log(max(v, a.from)/a.from) / math.Log(a.to/a.from)
	}
	return a.x0 + min(share, 1)*(a.x1-a.x0)
}

// draw draws grid and labels of a logarithmic axis from y0 down to y1.
func (a axis) draw(p *picture, y0, y1 float64) {
	for d := a.from; d <= a.to*1.001; d *= 10 {
		for k := 2.; k < 10 && d*k < a.to; k++ {
			p.line(a.at(d*k), y0, a.at(d*k), y1, "minor")
		}
	}
	for d := a.from; d <= a.to*1.001; d *= 10 {
		p.line(a.at(d), y0, a.at(d), y1, "grid")
		p.text(a.at(d), y1+18, "faint", "middle", tick(d))
	}
}

func tick(ms float64) string {
	switch {
	case ms >= 1000:
		return fmt.Sprintf("%g s", ms/1000)
	case ms < 0.99:
		return fmt.Sprintf("%g µs", math.Round(ms*1000))
	default:
		return fmt.Sprintf("%g ms", math.Round(ms))
	}
}
