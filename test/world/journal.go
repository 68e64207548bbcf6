// SPDX-License-Identifier: Apache-2.0

package world

import (
	"slices"
	"strings"
	"time"
)

// maxLines bounds the journal of a story.
const maxLines = 20000

// note writes down an effect or an incident (which begins with *** or ---) for a person to read.
func (w *World) note(what, id string) { w.line(what + " " + Short(id)) }

func (w *World) line(s string) {
	w.book.Lock()
	defer w.book.Unlock()
	if len(w.book.lines) < maxLines {
		w.book.lines = append(w.book.lines, time.Now().Format("04:05.000 ")+s)
	}
}

// Journal lists the events so far, for a person to read.
func (w *World) Journal() []string {
	w.book.Lock()
	defer w.book.Unlock()
	return slices.Clone(w.book.lines)
}

// Effects are the lines of a journal that do not come from berth's log.
func Effects(lines []string) []string {
	var list []string
	for _, l := range lines {
		if _, text, _ := strings.Cut(l, " "); !strings.HasPrefix(text, indent) {
			list = append(list, l)
		}
	}
	return list
}

// indent marks the lines of berth's log.
const indent = "      "

// journal makes the log of one life of berth a part of the world's journal. Log lines of a dead
// berth are dropped.
type journal struct {
	w *World
	l *Life
}

func (j journal) Write(b []byte) (int, error) {
	if j.l.Dead() {
		return len(b), nil
	}
	_, text, _ := strings.Cut(string(b), "level=")
	j.w.line(indent + strings.TrimSpace(text))
	return len(b), nil
}

// Short is an ID as journals have it.
func Short(id string) string { return id[:min(len(id), 8)] }
