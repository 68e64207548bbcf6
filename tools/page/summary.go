// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Card is a part of the summary: what a person who opens the page each day looks for first.
type Card struct {
	Name  string `json:"name"`
	Said  string `json:"said"` // how many there are, or that there is none
	Items []Item `json:"items"`
}

// Item is one thing of a card.
type Item struct {
	Row   string    `json:"row,omitempty"` // that it leads to
	Title string    `json:"title,omitempty"`
	Text  string    `json:"text"`
	At    time.Time `json:"at,omitzero"` // of the latest
	Count int       `json:"count,omitempty"`
}

// suffix matches the part of a pod's name that its controller adds: of a Deployment, a hash and
// five letters; of a CronJob, minutes and five letters; of a DaemonSet or a Job, five letters; of a
// StatefulSet, a number. Kubernetes takes neither vowels nor digits that look like letters.
var suffix = regexp.MustCompile(`(?:-(?:[bcdf-hj-np-tv-xz2456789]{6,10}|\d{8,11}))?-[bcdf-hj-np-tv-xz2456789]{5}$|-\d{1,4}$`)

// workload returns the name of a pod without that part.
func workload(pod string) string { return pod[:len(pod)-len(suffix.FindString(pod))] }

// failures are the marks of the first card, the worst first.
var failures = []struct {
	kind     MarkKind
	one, all string
}{
	{ExitOOM, "OOM kill", "OOM kills"},
	{ShimLost, "shim lost", "shims lost"},
	{ExitError, "error", "errors"},
	{ExitUnknown, "unknown end", "unknown ends"},
	{NotMade, "failure to make or pull it", "failures to make or pull it"},
	{ProbeKill, "probe kill or stop", "probe kills or stops"},
	{OOMSurvived, "OOM kill survived", "OOM kills survived"},
}

// slowPull is how long a pull takes at least that is called slow.
const slowPull = 30 * time.Second

func (m *Model) summary() []Card {
	card := func(name string, items []Item, none, one, all string) Card {
		if len(items) > 0 {
			none = counted(len(items), one, all)
		}
		return Card{name, none, items}
	}
	cards := []Card{
		card("Failed", m.failing(), "nothing has failed", "workload has failed", "workloads have failed"),
		card("Waits now", m.waiting(), "nothing waits", "waits now", "wait now"),
		card("Slow pulls", m.slowPulls(), "no pull was slow", "slow pull", "slow pulls"),
		card("berth and the node", m.restarts(), "berth was not restarted", "event of berth and the node", "events of berth and the node"),
	}
	if m.Live == nil {
		cards = slices.Delete(cards, 1, 2) // it is not known
	}
	return cards
}

// failing counts what has failed by workload.
func (m *Model) failing() []Item {
	of := map[string]*Item{}
	counts := map[string]map[MarkKind]int{}
	for _, r := range m.Rows {
		key := r.Namespace + "/" + r.Workload
		for _, f := range failures {
			if n := r.Counts[f.kind]; n > 0 {
				if of[key] == nil {
					of[key], counts[key] = &Item{Title: r.Workload}, map[MarkKind]int{}
				}
				of[key].Count += n
				counts[key][f.kind] += n
			}
		}
		for _, k := range r.Marks {
			if i := of[key]; i != nil && r.Counts[k.Kind] > 0 && isFailure(k.Kind) && !k.At.Before(i.At) {
				i.Row, i.At = r.Name, k.At
			}
		}
	}
	items := []Item{}
	for _, key := range slices.Sorted(maps.Keys(of)) {
		var said []string
		for _, f := range failures {
			if n := counts[key][f.kind]; n > 0 {
				said = append(said, counted(n, f.one, f.all))
			}
		}
		of[key].Text = strings.Join(said, ", ")
		items = append(items, *of[key])
	}
	slices.SortStableFunc(items, func(x, y Item) int { return cmp.Compare(y.Count, x.Count) })
	return items
}

func isFailure(kind MarkKind) bool {
	for _, f := range failures {
		if f.kind == kind {
			return true
		}
	}
	return false
}

func counted(n int, one, all string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, all)
}

// late reports whether an operation takes long or has failed before. A session takes as long as a
// person likes.
func (h Held) late() bool {
	return h.Err != "" || h.Tries > 1 || h.Age > 10 && !slices.Contains([]string{"exec", "attach", "port-forward"}, h.Kind)
}

func (m *Model) waiting() []Item {
	items := []Item{}
	if m.Live == nil {
		return items
	}
	for _, h := range m.Live.Held {
		if h.Late {
			_, pod, _ := strings.Cut(h.Row, "/")
			items = append(items, Item{Row: h.Row, Title: cmp.Or(pod, short(h.ID), "The node"), Text: h.Text, At: h.Since})
		}
	}
	return items
}

// slowPulls lists the images whose pulls took long, the longest first.
func (m *Model) slowPulls() []Item {
	of, took := map[string]*Item{}, map[string]time.Duration{}
	for _, r := range m.Rows {
		for _, b := range r.Bars {
			to := b.To
			if to.IsZero() {
				to = m.To
			}
			d := to.Sub(b.From)
			if b.Kind != BarPull || d < slowPull {
				continue
			}
			image, _, _ := strings.Cut(b.Note, ": ") // of a failed one, the error follows
			if of[image] == nil {
				of[image] = &Item{Title: image[strings.LastIndexByte(image, '/')+1:]}
			}
			i := of[image]
			i.Count++
			if d > took[image] {
				took[image], i.Row, i.At = d, r.Name, b.From
				i.Text = map[bool]string{false: "took ", true: "failed after "}[b.Held] + d.Round(time.Second).String()
				if b.To.IsZero() {
					i.Text = "takes " + d.Round(time.Second).String() + " so far"
				}
			}
		}
	}
	items := []Item{}
	for _, image := range slices.SortedFunc(maps.Keys(of), func(x, y string) int {
		return cmp.Or(cmp.Compare(took[y], took[x]), strings.Compare(x, y))
	}) {
		if n := of[image].Count; n > 1 {
			of[image].Text += fmt.Sprintf(", the longest of %d", n)
		}
		items = append(items, *of[image])
	}
	return items
}

// restarts lists what happened to berth, containerd and the node, the newest first.
func (m *Model) restarts() []Item {
	items := []Item{}
	for _, k := range slices.Backward(m.Node) {
		if !k.At.Before(m.From) {
			items = append(items, Item{Text: k.Text, At: k.At})
		}
	}
	return items
}
