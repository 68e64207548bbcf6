// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

// arrivals draws how the first pull of the large layer goes in each daemon: the bytes on the wire,
// those of unpacked files, and those of blobs, over time, with the bytes that one connection can
// have sent by then.
func arrivals(results string) string {
	const wide, high, pad, gap = 960., 360., 70., 92.
	type series struct {
		t, wire, files, blobs []float64
		over                  bool
	}
	all := map[string]*series{}
	var names []string
	var long, most float64
	for line := range strings.Lines(results) {
		var label string
		var t, w, f, b float64
		if n, _ := fmt.Sscanf(line, "# series PullLarge100MBs/gzip/daemon=%s %g %g %g %g", &label, &t, &w, &f, &b); n != 5 {
			continue
		}
		s := all[label]
		if s == nil {
			s = &series{}
			all[label], names = s, append(names, label)
		}
		if len(s.t) > 0 && t <= s.t[len(s.t)-1] { // a second round
			s.over = true
		}
		if s.over {
			continue
		}
		s.t, s.wire, s.files, s.blobs = append(s.t, t), append(s.wire, w), append(s.files, f), append(s.blobs, b)
		long, most = max(long, t), max(most, w, f, b)
	}
	c := newCard(wide, high+gap+40, "A large layer, at 100 MB/s a connection",
		"bytes over time: on the wire (line), unpacked (dashes), blobs (dots); grey: one connection at its limit")
	if len(names) == 0 || long == 0 || most == 0 {
		return c.String() + "</svg>\n"
	}
	x := func(t float64) float64 { return pad + t/long*(wide-2*pad) }
	y := func(b float64) float64 { return gap + high - min(b/most, 1)*high }
	for i := range 5 {
		t, b := long*float64(i)/4, most*float64(i)/4
		c.line(`<line x1="%g" y1="%.1f" x2="%g" y2="%.1f" class="grid"/>`, pad, y(b), wide-pad, y(b))
		c.text(pad-8, y(b)+4, "faint", "end", fmt.Sprintf("%.0f MB", b/1e6))
		c.text(x(t), gap+high+20, "faint", "middle", fmt.Sprintf("%.1f s", t/1000))
	}
	end := min(long, most/100e3)
	c.line(`<line x1="%g" y1="%.1f" x2="%.1f" y2="%.1f" class="grid" stroke-width="3"/>`, pad, y(0), x(end), y(end*100e3))
	for i, name := range names {
		class, s := name, all[name]
		if name == containerdPieces.name+"-pieces" {
			class = "crio"
		}
		c.text(wide-24, 34+18*float64(i), class, "end", name)
		for _, l := range []struct {
			dash   string
			values []float64
		}{{"none", s.wire}, {"8 4", s.files}, {"2 3", s.blobs}} {
			var points []string
			for k, v := range l.values {
				points = append(points, fmt.Sprintf("%.1f,%.1f", x(s.t[k]), y(v)))
			}
			c.line(`<polyline class="%s line" stroke-dasharray="%s" points="%s"/>`, class, l.dash, strings.Join(points, " "))
		}
	}
	return c.String() + "</svg>\n"
}
