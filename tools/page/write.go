// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed" // the parts of the page
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"
)

// MaxBytes is how large the file of a report is at most.
const MaxBytes = 2 << 20

//go:embed page.html
var pageHTML []byte

//go:embed page.css
var pageCSS []byte

//go:embed page.js
var pageJS []byte

// room is how large the data of a page may be: the rest besides the fixed parts, including the
// policy.
var room = MaxBytes - len(pageHTML) - len(pageCSS) - len(pageJS) - 2048

// Write writes a model as one HTML file.
func Write(w io.Writer, m Model) error {
	data, _, err := compact(m, room, 0)
	if err != nil {
		return err
	}
	_, err = w.Write(document(data, "'none'"))
	return err
}

// document returns the page. connect is the source of the policy that the page may ask for data.
func document(data []byte, connect string) []byte {
	policy := fmt.Sprintf("default-src 'none'; script-src 'sha256-%s'; style-src 'sha256-%s'; connect-src %s; base-uri 'none'; form-action 'none'",
		digest(pageJS), digest(pageCSS), connect)
	out := pageHTML
	for _, part := range []struct {
		name string
		text []byte
	}{
		{"POLICY", []byte(policy)},
		{"STYLE", pageCSS},
		{"SCRIPT", pageJS},
		{"DATA", data}, // the last, so that nothing in it is taken for the place of another part
	} {
		out = bytes.Replace(out, []byte("@@"+part.name+"@@"), part.text, 1)
	}
	return out
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return base64.StdEncoding.EncodeToString(sum[:])
}

// compact returns the data of a page, as small as it has to be, and how it was folded.
// encoding/json writes <, > and & as escapes, so that nothing in it ends a script or begins a
// comment.
func compact(m Model, limit int, poll time.Duration) ([]byte, fold, error) {
	var data []byte
	var err error
	pack := func(f fold) ([]byte, error) {
		doc := f.model(m)
		doc.Poll = poll.Milliseconds()
		b, err := json.Marshal(doc)
		if err != nil {
			return nil, fmt.Errorf("write the page: %w", err)
		}
		return b, nil
	}
	// The folds make a page smaller and smaller, so half of those that are left are passed by at a
	// time.
	first, last := 0, len(folds)
	var fits []byte
	for first < last {
		i := (first + last) / 2
		if first == 0 && last == len(folds) {
			i = 0 // most nodes are small
		}
		if data, err = pack(folds[i]); err != nil {
			return nil, folds[i], err
		}
		if len(data) <= limit {
			fits, last = data, i
		} else {
			first = i + 1
		}
	}
	if fits != nil {
		return fits, folds[last], nil
	}
	// Even so it is too much: the pods go that have the least to tell.
	f := folds[len(folds)-1]
	rows := slices.Clone(m.Rows)
	slices.SortStableFunc(rows, func(x, y Row) int { return cmp.Compare(y.trouble(), x.trouble()) })
	for len(data) > limit && len(rows) > 0 {
		n := max(0, min(len(rows)-1, len(rows)*limit/len(data)*95/100))
		for _, r := range rows[n:] {
			m.Folded.Rows++
			m.Folded.Entries += len(r.Lines)
		}
		rows = rows[:n]
		m.Rows = rows
		if live := m.Live; live != nil {
			kept := map[string]bool{}
			for _, r := range rows {
				kept[r.Name] = true
			}
			less := *live
			less.Pods = slices.DeleteFunc(slices.Clone(live.Pods), func(p PodUse) bool { return !kept[p.Row] })
			m.Live = &less
		}
		if data, err = pack(f); err != nil {
			return nil, f, err
		}
	}
	return data, f, nil
}

// trouble is how much a row has to tell.
func (r Row) trouble() int {
	n := len(r.Crashes) * 10
	for kind, count := range r.Counts {
		if kind != ExitCompleted && kind != Exec {
			n += count
		}
	}
	for _, b := range r.Bars {
		if b.Held {
			n += 5
		}
	}
	return n
}

// The compact form: texts are numbers into a list, instants are milliseconds since the beginning of
// the window, and an instant that is not known is null. page.js has the other half.
type compactModel struct {
	Host    string       `json:"host"`
	Version string       `json:"version"`
	Base    int64        `json:"base"` // the window's beginning, in milliseconds since 1970
	Span    int64        `json:"span"`
	Words   []string     `json:"words"`
	Rows    []compactRow `json:"rows"`
	Node    [][3]any     `json:"node"` // kind, at, text
	Away    [][3]any     `json:"away"` // from, to, text
	Missing []string     `json:"missing"`
	Summary []Card       `json:"summary"`
	Folded  Folded       `json:"folded"`
	Live    *Live        `json:"live"`
	Last    uint64       `json:"last"`
	Partial bool         `json:"partial,omitempty"` // it has the rows alone that have changed
	// how often to ask for changes, in milliseconds; 0: never
	Poll int64 `json:"poll,omitempty"`
	// the answer about the row that is open
	Why struct {
		Row  string   `json:"row"`
		Said []string `json:"said"`
	} `json:"why,omitzero"`
}

// In a row, lists of numbers lie one after the other, and instants are the milliseconds since the
// one before in the same list.
type compactRow struct {
	Name       string            `json:"n"`
	Namespace  string            `json:"ns"`
	Workload   string            `json:"w"`
	UID        string            `json:"uid"`
	Containers []string          `json:"c"`
	IDs        map[string]string `json:"ids"`
	// kind, container, attempt, from, length or -1: it goes on
	Bars []int64 `json:"b"`
	// of a bar, by its place: 1 if held and 2 if it began before, note, n
	More  [][4]int64 `json:"e,omitempty"`
	Marks []int64    `json:"m"` // kind, container, attempt, at, text
	// at, container, attempt, what, detail, error, by
	Lines   []int64          `json:"l"`
	Crashes []Crash          `json:"x,omitempty"`
	Counts  map[MarkKind]int `json:"k"`
	Folded  Folded           `json:"f"`
	Why     []string         `json:"y,omitempty"`
}

// words numbers texts.
type wordList struct {
	list []string
	at   map[string]int64
}

func (w *wordList) of(s string) int64 {
	i, ok := w.at[s]
	if !ok {
		i = int64(len(w.list))
		w.list, w.at[s] = append(w.list, s), i
	}
	return i
}

// model returns the compact form of a model, folded.
func (f fold) model(m Model) compactModel {
	words := &wordList{at: map[string]int64{}}
	words.of("")
	base := m.From.UnixMilli()
	ms := func(t time.Time) any {
		if t.IsZero() {
			return nil
		}
		return t.UnixMilli() - base
	}
	out := compactModel{
		Host:    m.Host,
		Version: m.Version,
		Base:    base,
		Span:    m.To.UnixMilli() - base,
		Rows:    []compactRow{},
		Node:    [][3]any{},
		Away:    [][3]any{},
		Missing: m.Missing,
		Summary: m.Summary,
		Folded:  m.Folded,
		Live:    m.Live,
		Last:    m.Last,
	}
	for _, k := range m.Node {
		out.Node = append(out.Node, [3]any{k.Kind, ms(k.At), k.Text})
	}
	for _, a := range m.Away {
		out.Away = append(out.Away, [3]any{ms(a.From), ms(a.To), a.What})
	}
	for _, r := range m.Rows {
		r = f.row(r)
		out.Folded.add(r.Folded)
		c := compactRow{
			Name:       r.Name,
			Namespace:  r.Namespace,
			Workload:   r.Workload,
			UID:        r.UID,
			Containers: r.Containers,
			IDs:        r.IDs,
			Crashes:    r.Crashes,
			Counts:     r.Counts,
			Folded:     r.Folded,
			Why:        r.Why,
			Bars:       make([]int64, 0, 5*len(r.Bars)),
			Marks:      make([]int64, 0, 5*len(r.Marks)),
			Lines:      make([]int64, 0, 7*len(r.Lines)),
		}
		before := base
		since := func(t time.Time) int64 {
			at := t.UnixMilli()
			d := at - before
			before = at
			return d
		}
		for i, b := range r.Bars {
			from, flags, length := b.From, int64(0), int64(-1)
			if from.IsZero() {
				from, flags = m.From, 2
			}
			if b.Held {
				flags |= 1
			}
			if !b.To.IsZero() {
				length = max(0, b.To.UnixMilli()-from.UnixMilli())
			}
			c.Bars = append(c.Bars, words.of(string(b.Kind)), words.of(b.Container), int64(b.Attempt), since(from), length)
			if flags != 0 || b.Note != "" || b.N > 0 {
				c.More = append(c.More, [4]int64{int64(i), flags, words.of(b.Note), int64(b.N)})
			}
		}
		before = base
		for _, k := range r.Marks {
			c.Marks = append(c.Marks, words.of(string(k.Kind)), words.of(k.Container), int64(k.Attempt), since(k.At), words.of(k.Text))
		}
		before = base
		for _, l := range r.Lines {
			c.Lines = append(c.Lines, since(l.At), words.of(l.Container), int64(l.Attempt), words.of(l.What), words.of(l.Detail), words.of(l.Err), words.of(l.By))
		}
		out.Rows = append(out.Rows, c)
	}
	out.Words = words.list
	return out
}
