// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Colours of the lines of a table, on a terminal.
const (
	doubtful = "\x1b[33m" // yellow
	bad      = "\x1b[31m" // red
	noColour = "\x1b[0m"
)

// grid keeps the columns of lines that come one after the other below each other. A column grows
// and does not shrink. On a terminal that is too narrow, names are cut.
type grid struct {
	columns []int
	// width is that of the terminal; 0: nothing is cut. cut are the columns that may be.
	width int
	cut   []int
	// colours are used on a terminal, unless NO_COLOR is set.
	colours bool
}

// shortest is how many characters of a name are left when it is cut.
const shortest = 12

// newGrid returns a grid for an output. The columns of names may be cut, unless whole is set.
func newGrid(w io.Writer, header, names []string, whole bool) *grid {
	g := &grid{colours: coloured(w)}
	f, ok := raw(w).(*os.File)
	if !ok || whole {
		return g
	}
	if width, _, err := term.GetSize(descriptor(f)); err == nil {
		g.width = width
	}
	for i, h := range header {
		if slices.Contains(names, h) {
			g.cut = append(g.cut, i)
		}
	}
	return g
}

// coloured reports whether an output is a terminal on which colours are wanted.
func coloured(w io.Writer) bool {
	f, ok := raw(w).(*os.File)
	return ok && term.IsTerminal(descriptor(f)) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// gridLine is a line of a grid.
type gridLine struct {
	cells  []string
	colour string
}

// format returns the lines as text that may be written to a terminal.
func (g *grid) format(lines []gridLine) string {
	for _, l := range lines {
		for i, cell := range l.cells {
			if i == len(g.columns) {
				g.columns = append(g.columns, 0)
			}
			g.columns[i] = max(g.columns[i], utf8.RuneCountInString(Visible(cell)))
		}
	}
	g.fit()
	var b strings.Builder
	for _, l := range lines {
		var text strings.Builder
		for i, cell := range l.cells {
			cell = shorten(Visible(cell), g.columns[i])
			text.WriteString(cell)
			text.WriteString(strings.Repeat(" ", g.columns[i]-utf8.RuneCountInString(cell)+2))
		}
		s := strings.TrimRight(text.String(), " ")
		if g.colours && l.colour != "" {
			s = l.colour + s + noColour
		}
		b.WriteString(s + "\n")
	}
	return b.String()
}

// fit makes the widest of the columns that may be cut narrower until the lines fit.
func (g *grid) fit() {
	if g.width == 0 || len(g.columns) == 0 {
		return
	}
	over := -2 - g.width // of the last column
	for _, n := range g.columns {
		over += n + 2
	}
	for ; over > 0; over-- {
		widest := -1
		for _, i := range g.cut {
			if g.columns[i] > shortest && (widest < 0 || g.columns[i] > g.columns[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		g.columns[widest]--
	}
}

// shorten cuts the middle of a text, because names differ at both ends.
func shorten(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	head := (most - 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(most-1-head):])
}
