// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strings"
	"time"
)

// maxLines bounds the journal of a story.
const maxLines = 20000

// note writes down an effect or an incident (which begins with *** or ---) for a person to read.
func (w *World) note(what, id string) { w.line(what + " " + short(id)) }

func (w *World) line(s string) {
	w.book.Lock()
	defer w.book.Unlock()
	if len(w.book.lines) < maxLines {
		w.book.lines = append(w.book.lines, time.Now().Format("04:05.000 ")+s)
	}
}

// effects are the lines of a journal that do not come from berth's log.
func effects(lines []string) []string {
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

// journal makes the log of one life of berth a part of the world's journal. What a dead berth logs
// is dropped.
type journal struct {
	w *World
	l *life
}

func (j journal) Write(b []byte) (int, error) {
	if j.l.dead() {
		return len(b), nil
	}
	_, text, _ := strings.Cut(string(b), "level=")
	j.w.line(indent + strings.TrimSpace(text))
	return len(b), nil
}

func short(id string) string { return id[:min(len(id), 8)] }
