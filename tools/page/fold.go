// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// fold is how much of a row is kept.
type fold struct {
	from     weight // lines that are lighter are left out
	lines    int    // of a row, the heaviest and of these the newest; 0: all
	attempts int    // of each container, the newest; 0: all
	log      int    // lines of each log; 0: all
}

// folds are tried in their order until a page is small enough.
var folds = []fold{
	{},
	{from: usual},
	{from: usual, lines: 300},
	{from: usual, lines: 150, attempts: 200},
	{from: usual, lines: 80, attempts: 100},
	{from: usual, lines: 50, attempts: 60},
	{from: usual, lines: 36, attempts: 40},
	{from: usual, lines: 28, attempts: 30},
	{from: usual, lines: 22, attempts: 24},
	{from: usual, lines: 18, attempts: 18, log: 8},
	{from: usual, lines: 14, attempts: 12, log: 6},
	{from: usual, lines: 10, attempts: 8, log: 6},
	{from: notable, lines: 8, attempts: 6, log: 4},
	{from: notable, lines: 6, attempts: 4, log: 3},
	{from: grave, lines: 3, attempts: 3, log: 2},
	{from: grave, lines: 1, attempts: 1, log: 1},
}

// row returns a row with less in it.
func (f fold) row(r Row) Row {
	r = f.foldAttempts(r)
	before := len(r.Lines)
	lines := slices.Clone(r.Lines)
	lines = slices.DeleteFunc(lines, func(l Line) bool { return l.weight < f.from })
	for w := f.from; f.lines > 0 && len(lines) > f.lines && w <= grave; w++ {
		excess := len(lines) - f.lines
		lines = slices.DeleteFunc(lines, func(l Line) bool { // the oldest of the lightest go first
			if l.weight != w || excess == 0 {
				return false
			}
			excess--
			return true
		})
	}
	r.Lines = lines
	r.Folded.Entries += before - len(lines)
	if f.log > 0 {
		r.Crashes = slices.Clone(r.Crashes)
		for i, c := range r.Crashes {
			if n := len(c.Log) - f.log; n > 0 {
				r.Crashes[i].Log = c.Log[n:]
				r.Folded.Logs += n
			}
		}
	}
	return r
}

// attempt is a container of several with one name.
type attempt struct {
	container string
	number    uint32
}

// foldAttempts leaves the newest attempts of each container, and puts one bar in the place of the
// others.
func (f fold) foldAttempts(r Row) Row {
	if f.attempts == 0 {
		return r
	}
	newest := map[string]uint32{}
	for _, b := range r.Bars {
		newest[b.Container] = max(newest[b.Container], b.Attempt)
	}
	old := func(container string, n uint32) bool {
		return uint64(n)+uint64(f.attempts) <= uint64(newest[container])
	}
	seen := map[attempt]bool{}
	instead := map[string]*Bar{}
	ends := map[string]map[MarkKind]int{}
	var bars []Bar
	for _, b := range r.Bars {
		if !old(b.Container, b.Attempt) {
			bars = append(bars, b)
			continue
		}
		s := instead[b.Container]
		if s == nil {
			s = &Bar{Kind: BarFolded, Container: b.Container, From: b.From}
			instead[b.Container] = s
			ends[b.Container] = map[MarkKind]int{}
		}
		if a := (attempt{b.Container, b.Attempt}); !seen[a] {
			seen[a] = true
			s.N++
		}
		if b.To.After(s.To) {
			s.To = b.To
		}
		s.Attempt = max(s.Attempt, b.Attempt)
	}
	var marks []Mark
	for _, m := range r.Marks {
		if old(m.Container, m.Attempt) && ends[m.Container] != nil {
			ends[m.Container][m.Kind]++
			continue
		}
		marks = append(marks, m)
	}
	for _, name := range slices.Sorted(maps.Keys(instead)) {
		s := instead[name]
		var what []string
		for _, kind := range slices.Sorted(maps.Keys(ends[name])) {
			what = append(what, fmt.Sprintf("%d %s", ends[name][kind], kind))
		}
		s.Note = strings.Join(what, ", ")
		r.Folded.Attempts += s.N
		bars = append(bars, *s)
	}
	slices.SortStableFunc(bars, func(x, y Bar) int { return x.From.Compare(y.From) })
	r.Bars, r.Marks = bars, marks
	return r
}
