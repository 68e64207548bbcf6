// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	berthv1 "berth/api/berth/v1"
	"berth/internal/base/event"
)

// entry is a record that was read.
type entry struct {
	number uint64
	at     time.Time
	id     string
	kind   string
	event  event.Event // nil: of a newer berth
	line   event.Line
	before time.Time // of a start of berth: the instant of the record before
}

// History keeps the records of a node by their objects. It is not safe for use by several
// goroutines.
type History struct {
	byID  map[string][]entry // "" for the node
	names map[string]event.Names
	rows  map[string]*cached // by NAMESPACE/POD
	rowOf map[string]string  // by ID
	last  uint64
	prev  time.Time // the instant of the newest record
	first time.Time // the instant of the oldest
}

// cached is a row, and whether it has to be drawn anew.
type cached struct {
	ids   []string
	row   Row
	stale bool
}

// NewHistory returns an empty one.
func NewHistory() *History {
	return &History{
		byID:  map[string][]entry{},
		names: map[string]event.Names{},
		rows:  map[string]*cached{},
		rowOf: map[string]string{},
	}
}

// Last returns the number of the newest record.
func (h *History) Last() uint64 { return h.last }

// Seen takes note that there is nothing to add up to a number.
func (h *History) Seen(number uint64) { h.last = max(h.last, number) }

// Add adds a record. The numbers have to ascend. A record that cannot be read is an error and is
// left out; one of a newer berth is shown by its kind.
func (h *History) Add(r *berthv1.Record) error {
	h.last = max(h.last, r.GetNumber())
	var kind struct {
		Kind string `json:"kind"`
	}
	var e event.Entry
	err := json.Unmarshal([]byte(r.GetEntry()), &e)
	if errors.Is(err, event.ErrUnknown) {
		err = json.Unmarshal([]byte(r.GetEntry()), &kind)
	}
	if err != nil {
		return fmt.Errorf("record %d: %w", r.GetNumber(), err)
	}
	n := entry{number: r.GetNumber(), at: e.At.Stamp(), id: e.ID, kind: kind.Kind, event: e.Event}
	if e.Event != nil {
		n.kind, n.line = event.Kind(e.Event), e.Line()
	} else {
		n.line = event.Line{Message: words(kind.Kind)}
	}
	if h.first.IsZero() || n.at.Before(h.first) {
		h.first = n.at
	}
	if n.kind == "BerthStarted" {
		n.before = h.prev
	}
	h.prev = n.at
	h.byID[n.id] = append(h.byID[n.id], n)
	if n.id == "" {
		return nil
	}
	if of := r.GetOf(); of != nil {
		h.names[n.id] = event.Names{
			Namespace: of.GetNamespace(),
			Pod:       of.GetPod(),
			UID:       of.GetUid(),
			Sandbox:   of.GetSandbox(),
			Container: of.GetContainer(),
			Attempt:   of.GetAttempt(),
		}
	}
	h.place(n.id)
	return nil
}

// words turns the kind of an event that this berth does not know into words: PodMoved, pod moved.
func words(kind string) string {
	var b strings.Builder
	for i, c := range kind {
		if c >= 'A' && c <= 'Z' && i > 0 {
			b.WriteByte(' ')
		}
		b.WriteRune(c)
	}
	return strings.ToLower(b.String())
}

// place puts an ID into its row, which has to be drawn anew.
func (h *History) place(id string) {
	name := "unknown/" + short(id)
	if n := h.names[id]; n.Pod != "" {
		name = n.Namespace + "/" + n.Pod
	}
	if before := h.rowOf[id]; before != name {
		if c := h.rows[before]; c != nil {
			c.ids = slices.DeleteFunc(c.ids, func(x string) bool { return x == id })
			c.stale = true
			if len(c.ids) == 0 {
				delete(h.rows, before)
			}
		}
		c := h.rows[name]
		if c == nil {
			c = &cached{}
			h.rows[name] = c
		}
		c.ids = append(c.ids, id)
		h.rowOf[id] = name
	}
	h.rows[name].stale = true
}

func short(id string) string { return id[:min(len(id), 13)] }

// Forget drops entries older than an instant, and rows without any left.
func (h *History) Forget(before time.Time) {
	for id, list := range h.byID {
		i := slices.IndexFunc(list, func(n entry) bool { return !n.at.Before(before) })
		if i == 0 {
			continue
		}
		if i < 0 {
			i = len(list)
		}
		if c := h.rows[h.rowOf[id]]; c != nil && id != "" {
			c.stale = true
			if i == len(list) {
				c.ids = slices.DeleteFunc(c.ids, func(x string) bool { return x == id })
				if len(c.ids) == 0 {
					delete(h.rows, h.rowOf[id])
				}
			}
		}
		if i == len(list) {
			delete(h.byID, id)
			delete(h.names, id)
			delete(h.rowOf, id)
		} else {
			h.byID[id] = slices.Clone(list[i:])
		}
	}
}

// Window is the time that a page shows.
type Window struct{ From, To time.Time }

// shortest is how much time a page shows at least.
const shortest = 15 * time.Minute

// Model draws everything. live may be nil. Time before the history begins is not shown.
func (h *History) Model(w Window, live *Live) Model {
	begin := w.To.Add(-shortest)
	if h.first.Before(begin) {
		begin = h.first
	}
	if begin.After(w.From) {
		w.From = begin
	}
	m := Model{Made: w.To, From: w.From, To: w.To, Rows: []Row{}, Live: live, Last: h.last}
	for _, name := range slices.Sorted(maps.Keys(h.rows)) {
		c := h.rows[name]
		if c.stale {
			c.row = h.draw(name, c.ids)
			c.stale = false
		}
		m.Rows = append(m.Rows, c.row)
	}
	h.node(&m)
	if live != nil {
		m.addQuiet(live)
		for i, held := range live.Held {
			live.Held[i].Late = held.late()
			if held.Row == "" {
				live.Held[i].Row = h.rowOf[held.ID]
				live.Held[i].Container = h.names[held.ID].Container
			}
		}
	}
	m.Summary = m.summary()
	return m
}

// addQuiet adds objects without a record in the whole history: existing pods, and the sandboxes of
// those that began before.
func (m *Model) addQuiet(live *Live) {
	at := map[string]int{}
	for i, r := range m.Rows {
		at[r.Name] = i
	}
	for _, p := range live.Pods {
		i, ok := at[p.Row]
		if !ok {
			row := Row{
				Name:       p.Row,
				Containers: []string{},
				IDs:        map[string]string{},
				Marks:      []Mark{},
				Lines:      []Line{},
				Counts:     map[MarkKind]int{},
			}
			row.Namespace, row.Pod, _ = strings.Cut(p.Row, "/")
			row.Workload = workload(row.Pod)
			for _, c := range p.Containers {
				row.Containers = append(row.Containers, c.Name)
				if c.State == "running" {
					row.Bars = append(row.Bars, Bar{Kind: BarRun, Container: c.Name})
				}
			}
			i = len(m.Rows)
			m.Rows = append(m.Rows, row)
			at[p.Row] = i
		}
		r := &m.Rows[i]
		if p.Ready && !slices.ContainsFunc(r.Bars, func(b Bar) bool { return b.Kind == BarSandbox && b.To.IsZero() }) {
			r.Bars = slices.Concat([]Bar{{Kind: BarSandbox}}, r.Bars)
		}
	}
	slices.SortFunc(m.Rows, func(x, y Row) int { return strings.Compare(x.Name, y.Name) })
}

// node adds the events of berth, containerd and the machine.
func (h *History) node(m *Model) {
	var stopped time.Time
	lost, unread := 0, 0
	for _, n := range h.byID[""] {
		mark := Mark{At: n.at, Text: lineText(n.line)}
		switch e := n.event.(type) {
		case event.BerthStopped:
			stopped = n.at
			continue
		case event.BerthStarted:
			away := Away{From: n.before, To: n.at, What: "berth was not there, after " + e.After}
			switch e.After {
			case event.AfterReboot:
				mark.Kind = Rebooted
				mark.Text = "the machine was rebooted, or lost its power"
			case event.AfterShutdown:
				mark.Kind = Rebooted
				mark.Text = "the machine was shut down"
			case event.AfterKill:
				mark.Kind = BerthKilled
				mark.Text = "berth was killed or crashed, and started again"
			default:
				mark.Kind = BerthUp
				mark.Text = "berth started"
				if e.After != "" {
					mark.Text += " after " + e.After
				}
				away.From = stopped
			}
			if e.Version != "" {
				mark.Text += " (" + e.Version + ")"
			}
			if !away.From.IsZero() && e.After != "" {
				if e.After != event.AfterStop {
					away.What += ", for no longer than this: the last record before it is where this begins"
				}
				m.Away = append(m.Away, away)
			}
			stopped = time.Time{}
		case event.EntriesLost:
			lost += e.Count
			mark.Kind = HistoryGap
		case event.HistoryUnread:
			unread++
			mark.Kind = HistoryGap
		default:
			kind, ok := plain[n.kind]
			if !ok {
				continue
			}
			mark.Kind = kind
		}
		m.Node = append(m.Node, mark)
	}
	if lost > 0 {
		m.Missing = append(m.Missing, fmt.Sprintf("%d entries of the history were lost before they could be written.", lost))
	}
	if unread > 0 {
		m.Missing = append(m.Missing, fmt.Sprintf("%d files of the history cannot be read to their end.", unread))
	}
}

// lineText returns a line without its instant.
func lineText(l event.Line) string {
	text := l.Message
	if d := detail(l.Attrs); d != "" {
		text += " (" + d + ")"
	}
	if l.Err != "" {
		text += ": " + l.Err
	}
	return bound(text)
}

func detail(attrs []slog.Attr) string {
	var d strings.Builder
	for i, a := range attrs {
		if i > 0 {
			d.WriteByte(' ')
		}
		d.WriteString(a.Key)
		d.WriteByte('=')
		d.WriteString(a.Value.String())
	}
	return d.String()
}

// maxText is how long a text may be on the page, in bytes.
const maxText = 1024

func bound(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "..."
}

func byTime(x, y entry) int { return cmp.Or(x.at.Compare(y.at), cmp.Compare(x.number, y.number)) }
