// SPDX-License-Identifier: Apache-2.0

package page_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/test/browser"
	"berth/tools/page"
)

var began = time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)

func at(m float64) time.Time { return began.Add(time.Duration(m * float64(time.Minute))) }

func modelOf(t testing.TB, s *browser.Story, until time.Time, live *page.Live) page.Model {
	t.Helper()
	h := page.NewHistory()
	for _, r := range s.Records() {
		if err := h.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	return h.Model(page.Window{From: began, To: until}, live)
}

// drawn returns the only row in short: bars and marks, in minutes.
func drawn(t *testing.T, m page.Model) []string {
	t.Helper()
	if len(m.Rows) != 1 {
		t.Fatalf("%d rows", len(m.Rows))
	}
	minute := func(at time.Time) string {
		if at.IsZero() {
			return "?"
		}
		return fmt.Sprintf("%.0f", at.Sub(began).Minutes())
	}
	var got []string
	for _, b := range m.Rows[0].Bars {
		if b.Kind == page.BarCreate || b.Kind == page.BarPull && !b.Held {
			continue // they take no time in these stories
		}
		held := ""
		if b.Held {
			held = " held: " + b.Note
		}
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s%s %s-%s%s", b.Container, b.Kind, minute(b.From), minute(b.To), held)))
	}
	for _, k := range m.Rows[0].Marks {
		got = append(got, fmt.Sprintf("%s %s at %s", k.Container, k.Kind, minute(k.At)))
	}
	return got
}

// PROPERTIES 15: each story is drawn as what it is.
func TestStoriesAreDrawn(t *testing.T) {
	unknown := event.Exit{Code: 255, Reason: exit.ReasonUnknown, Witness: exit.Audit}
	for name, tt := range map[string]struct {
		tell func(s *browser.Story)
		want []string
	}{
		"a crash loop": {
			func(s *browser.Story) {
				p := s.Pod(at(1), "a", "p", "")
				for i := range 3 {
					c := p.Start(at(float64(2+10*i)), "c")
					c.End(browser.Exit(at(float64(7+10*i)), 1))
				}
			},
			[]string{"sandbox 1-?", "crun 2-7", "crelease 7-7", "crun 12-17", "crelease 17-17", "crun 22-27", "crelease 27-27", "c error at 7", "c error at 17", "c error at 27"},
		},
		"an OOM kill, after one that was survived": {
			func(s *browser.Story) {
				p := s.Pod(at(1), "a", "p", "")
				c := p.Start(at(2), "c")
				s.Tell(at(3), c.ID, c.Names, event.OOMKillSurvived{Kills: 1})
				c.End(browser.OOM(at(4)))
			},
			[]string{"sandbox 1-?", "crun 2-4", "crelease 4-4", "c oom-survived at 3", "c oom at 4"},
		},
		"a stop of the pod": {
			func(s *browser.Story) {
				p := s.Pod(at(1), "a", "p", "")
				c := p.Start(at(2), "c")
				p.Stop(at(9), c)
			},
			[]string{"sandbox 1-9", "crun 2-9", "crelease 9-9", "release 9-9", "crelease 9-9", "c completed at 9"},
		},
		"a stop of the pod that one container does not obey": {
			func(s *browser.Story) {
				p := s.Pod(at(1), "a", "p", "")
				c := p.Start(at(2), "c")
				c.Stop(at(9), true)
				c.End(browser.Exit(at(9.5), 137))
			},
			[]string{"sandbox 1-?", "crun 2-10", "crelease 10-10", "c stopped at 10"},
		},
		"a probe's kill": {
			func(s *browser.Story) {
				p := s.Pod(at(1), "a", "p", "")
				c := p.Start(at(2), "c")
				c.Stop(at(5), false)
				c.End(browser.Exit(at(5.2), 143))
				last := p.Start(at(6), "c")
				p.Stop(at(20), last) // by then it is the whole pod
			},
			[]string{"sandbox 1-20", "crun 2-5", "crelease 5-5", "crun 6-20", "crelease 20-20", "release 20-20", "crelease 20-20", "c probe-kill at 5", "c stopped at 5", "c completed at 20"},
		},
		"a stop of the pod during which berth was killed": {
			func(s *browser.Story) {
				p := s.Pod(at(1), "a", "p", "")
				c := p.Start(at(2), "c")
				c.Stop(at(9), false)
				c.End(browser.Exit(at(9.1), 137))
				s.Tell(at(9.3), p.ID, p.Names, event.ExitRecalled{Exit: browser.Exit(at(9.1), 0)})
			},
			[]string{"sandbox 1-9", "crun 2-9", "crelease 9-9", "c stopped at 9"},
		},
		"a reboot": {
			func(s *browser.Story) {
				p := s.Pod(at(1), "a", "p", "")
				c := p.Start(at(2), "c")
				s.Tell(at(30), "", event.Names{}, event.BerthStarted{After: event.AfterReboot})
				e := unknown
				e.Ended = clock.Stamped(at(29))
				s.Tell(at(30.1), c.ID, c.Names, event.ExitSettled{Exit: e})
			},
			[]string{"sandbox 1-?", "crun 2-29", "c unknown at 29"},
		},
		"a release that hangs": {
			func(s *browser.Story) {
				p := s.Pod(at(1), "a", "p", "")
				c := p.Start(at(2), "c")
				s.Tell(at(5), c.ID, c.Names, event.ExitSettled{Exit: browser.Exit(at(5), 0)})
				c.Hang(at(5.01), at(40), "unmount: busy")
			},
			[]string{"sandbox 1-?", "crun 2-5", "crelease 5-? held: unmount: busy", "c completed at 5"},
		},
		"one that hung": {
			func(s *browser.Story) {
				p := s.Pod(at(1), "a", "p", "")
				c := p.Start(at(2), "c")
				s.Tell(at(5), c.ID, c.Names, event.ExitSettled{Exit: browser.Exit(at(5), 0)})
				c.Hang(at(5.01), at(40), "unmount: busy")
				s.Tell(at(41), c.ID, c.Names, event.Released{What: []string{"task"}})
			},
			[]string{"sandbox 1-?", "crun 2-5", "crelease 5-41", "c completed at 5"},
		},
		"a volume that hangs": {
			func(s *browser.Story) {
				p := s.Pod(at(1), "a", "p", "")
				n := p.Names
				n.Sandbox, n.Container = p.ID, "c"
				s.Tell(at(2), "cc", n, event.HostPathSilent{Path: "/mnt/nfs"})
			},
			[]string{"sandbox 1-?"},
		},
		"an image that cannot be pulled": {
			func(s *browser.Story) {
				p := s.Pod(at(1), "a", "p", "")
				s.Tell(at(2), p.ID, p.Names, event.PullBegan{Image: "i"})
				s.Tell(at(3), p.ID, p.Names, event.ImageNotPulled{Image: "i", Err: "no such host"})
			},
			[]string{"sandbox 1-?", "pull 2-3 held: i: no such host", " not-made at 3"},
		},
		"a sandbox that was never made": {
			func(s *browser.Story) {
				s.Tell(at(2), "s1", event.Names{Namespace: "a", Pod: "p"}, event.SandboxNotMade{Names: event.Names{Namespace: "a", Pod: "p"}, Err: "CNI"})
			},
			[]string{" not-made at 2"},
		},
		"a start that failed": {
			func(s *browser.Story) {
				n := event.Names{Namespace: "a", Pod: "p", Container: "c"}
				s.Tell(at(2), "c1", n, event.ContainerCreated{Names: n})
				s.Tell(at(3), "c1", n, event.StartFailed{Err: "no such file"})
				s.Tell(at(3), "c1", n, event.ExitSettled{Exit: event.Exit{Code: 128, Reason: exit.ReasonStartError, Witness: exit.Start, Ended: clock.Stamped(at(3))}})
			},
			[]string{"c error at 3"},
		},
		"what began before the history": {
			func(s *browser.Story) {
				n := event.Names{Namespace: "a", Pod: "p", Container: "c"}
				s.Tell(at(3), "c1", n, event.ExitSettled{Exit: browser.Exit(at(3), 2)})
			},
			[]string{"crun ?-3", "c error at 3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &browser.Story{}
			tt.tell(s)
			if got := drawn(t, modelOf(t, s, at(60), nil)); !slices.Equal(got, tt.want) {
				t.Errorf("drawn as\n%q, want\n%q", got, tt.want)
			}
		})
	}
}

func TestTheNodeHasMarks(t *testing.T) {
	s := &browser.Story{}
	node := func(m float64, e event.Event) { s.Tell(at(m), "", event.Names{}, e) }
	node(1, event.BerthStarted{Version: "v1"})
	node(5, event.BerthStopped{})
	node(6, event.BerthStarted{Version: "v2", After: event.AfterStop})
	node(10, event.ContainerdLost{Err: "EOF"})
	node(20, event.BerthStarted{Version: "v2", After: event.AfterKill})
	node(40, event.BerthStarted{Version: "v2", After: event.AfterReboot})
	node(41, event.EntriesLost{Count: 7, Err: "disk full"})
	m := modelOf(t, s, at(60), nil)
	var got []string
	for _, k := range m.Node {
		got = append(got, fmt.Sprintf("%s at %.0f", k.Kind, k.At.Sub(began).Minutes()))
	}
	if want := []string{"berth at 1", "berth at 6", "containerd at 10", "berth-killed at 20", "reboot at 40", "gap at 41"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	got = nil
	for _, a := range m.Away {
		got = append(got, fmt.Sprintf("%.0f-%.0f", a.From.Sub(began).Minutes(), a.To.Sub(began).Minutes()))
	}
	if want := []string{"5-6", "10-20", "20-40"}; !slices.Equal(got, want) {
		t.Errorf("away %q, want %q", got, want)
	}
	if len(m.Missing) != 1 || !strings.Contains(m.Missing[0], "7 entries") {
		t.Errorf("%q", m.Missing)
	}
}

// An event of a newer berth is shown, and has words. An exec has a mark.
func TestAKindThatIsNotKnownIsShown(t *testing.T) {
	s := &browser.Story{}
	p := s.Pod(at(1), "a", "p", "")
	c := p.Start(at(2), "c")
	records := s.Records()
	last, access := records[len(records)-1], proto.CloneOf(records[len(records)-1])
	last.Number += 2
	last.Entry = strings.NewReplacer(`"ContainerRunning"`, `"PodMoved"`).Replace(last.Entry)
	access.Number++
	access.Entry = strings.NewReplacer(`"ContainerRunning"`, `"AccessBegan"`).Replace(access.Entry)
	h := page.NewHistory()
	for _, r := range append(records, access, last) {
		if err := h.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	row := h.Model(page.Window{From: began, To: at(9)}, nil).Rows[0]
	line := row.Lines[len(row.Lines)-1]
	if row.Counts[page.Exec] != 1 || line.Kind != "PodMoved" || line.What != "pod moved" {
		t.Errorf("%v of %s: %+v", row.Counts, c.ID, line)
	}
	last.Entry = `{"at":"yesterday"}`
	if err := h.Add(last); err == nil {
		t.Error("a record without an instant is no error")
	}
}

// A pod to which nothing happened in all that time is there as well.
func TestQuietPodsAreShown(t *testing.T) {
	s := &browser.Story{}
	s.Pod(at(1), "a", "b", "")
	live := &page.Live{
		Pods: []page.PodUse{{Row: "a/a", Ready: true, Containers: []page.ContainerUse{{Name: "c", State: "running"}}}, {Row: "a/b", Ready: true}},
	}
	m := modelOf(t, s, at(9), live)
	if len(m.Rows) != 2 || m.Rows[0].Name != "a/a" || len(m.Rows[0].Bars) != 2 || m.Rows[1].Name != "a/b" {
		t.Errorf("%+v", m.Rows)
	}
	for _, b := range m.Rows[1].Bars {
		if b.Kind == page.BarSandbox && b.From.IsZero() {
			t.Error("a sandbox is drawn twice")
		}
	}
}

// What a person looks for first each day is at the head of the page: the troubles of each workload,
// however its controller named the pods, what waits, slow pulls, and what happened to berth.
func TestTheSummaryHasWhatMatters(t *testing.T) {
	s := browser.Troubles(began)
	s.Workloads(began, 68)
	p := s.Pod(at(90), "shop", "large-bcdfg", "")
	s.Tell(at(91), p.ID, p.Names, event.PullBegan{Image: "registry.example/large:1"})
	s.Tell(at(93), p.ID, p.Names, event.ImagePulled{Image: "registry.example/large:1", Took: 2 * time.Minute})
	for name, live := range map[string]*page.Live{"a file": nil, "a page": {Held: []page.Held{
		{Row: "batch/import-nightly", Text: "waits for a disk", Age: 11, Kind: "remove"},
		{Row: "shop/search-0", Text: "a person types", Age: 1e6, Kind: "exec"},
		{Row: "shop/search-0", Text: "is young", Age: 9, Kind: "stop"},
	}}} {
		var got []string
		for _, c := range modelOf(t, s, at(120), live).Summary {
			got = append(got, c.Said)
			for _, i := range c.Items {
				got = append(got, strings.TrimSpace(i.Row+" "+i.Title+" "+i.Text))
			}
		}
		want := []string{
			"5 workloads have failed",
			"payments/api-5f7d8c9b6d-kx2lp api 26 errors",
			"ranker 17 OOM kills",
			"payments/ledger-migrate ledger-migrate 5 failures to make or pull it",
			"shop/checkout-79b5f6c8d4-q8dwz checkout 4 probe kills or stops",
			"shop/search-0 search 2 OOM kills, 1 OOM kill survived",
			"1 waits now",
			"batch/import-nightly import-nightly waits for a disk",
			"2 slow pulls",
			"shop/large-bcdfg large:1 took 2m0s",
			"payments/ledger-migrate ledger:2.0.0-rc failed after 48s, the longest of 5",
			"4 events of berth and the node",
			"containerd is lost",
			"berth started after a stop (v1.4.1)",
			"berth was killed or crashed, and started again (v1.4.1)",
			"berth started after a stop (v1.4.0)",
		}
		if live == nil {
			want = slices.Delete(want, 6, 8)
		}
		for i, w := range want {
			if i >= len(got) || !strings.Contains(got[i], w) && !(strings.HasPrefix(w, "containerd") && strings.Contains(got[i], "containerd")) {
				t.Errorf("%s: %q, want %q in %d", name, got, w, i)
				break
			}
		}
	}
	calm := &browser.Story{}
	calm.Pod(at(1), "a", "p", "")
	for _, c := range modelOf(t, calm, at(2), &page.Live{}).Summary {
		if len(c.Items) > 0 {
			t.Errorf("a calm node has %+v", c)
		}
	}
}

// The pods of a controller have the name of its workload, and others their own.
func TestAPodBelongsToItsWorkload(t *testing.T) {
	s := &browser.Story{}
	want := map[string]string{
		"api-5f7d8c9b6d-kx2lp":         "api",        // of a Deployment
		"kube-proxy-x2x9p":             "kube-proxy", // of a DaemonSet or a Job
		"search-0":                     "search",     // of a StatefulSet
		"backup-29411460-z7h2k":        "backup",     // of a CronJob
		"kube-apiserver-master":        "kube-apiserver-master",
		"import-nightly":               "import-nightly",
		"x2x9p":                        "x2x9p",
		"ingress-nginx-controller-123": "ingress-nginx-controller",
	}
	for pod := range want {
		s.Pod(at(1), "a", pod, "")
	}
	for _, r := range modelOf(t, s, at(2), nil).Rows {
		if r.Workload != want[r.Pod] {
			t.Errorf("%s belongs to %s", r.Pod, r.Workload)
		}
	}
}

// hostile is what a pod may choose as a name, and write into its log.
const hostile = `</script><script>alert(1)</script><!--<script>]]>"><img src=x onerror=alert(1)>` + "\u2028\u2029\x00\xff@@SCRIPT@@"

func TestWhatPodsSayIsNotMarkup(t *testing.T) {
	s := &browser.Story{}
	p := s.Pod(at(1), "n"+hostile, "p"+hostile, "image"+hostile)
	c := p.Start(at(2), "c"+hostile)
	e := browser.Exit(at(3), 1)
	e.Detail = hostile
	c.End(e)
	c.Crash(e, e, 1, hostile)
	c.Hang(at(3.1), at(4), hostile)
	m := modelOf(t, s, at(9), &page.Live{Warnings: []string{hostile}, Held: []page.Held{{ID: c.ID, Text: hostile}}})
	m.Host, m.Version = hostile, hostile
	var b bytes.Buffer
	if err := page.Write(&b, m); err != nil {
		t.Fatal(err)
	}
	doc := b.String()
	if got := len(regexp.MustCompile(`(?i)<script`).FindAllString(doc, -1)); got != 2 {
		t.Errorf("%d scripts, want 2: the data and the program", got)
	}
	for _, bad := range []string{"<img", "<!--", "alert(1)</"} {
		if strings.Contains(doc, bad) {
			t.Errorf("%s is in the page", bad)
		}
	}
	_, data, _ := strings.Cut(doc, `<script type="application/json" id="data">`)
	data, _, _ = strings.Cut(data, "</script>")
	var v struct{ Host string }
	if err := json.Unmarshal([]byte(data), &v); err != nil || !strings.HasPrefix(v.Host, "</script><script>alert(1)") {
		t.Errorf("the data: %v, %q", err, v.Host)
	}
}

// The page asks nobody for anything, and makes no markup out of texts.
func TestThePageLoadsNothing(t *testing.T) {
	var b bytes.Buffer
	if err := page.Write(&b, modelOf(t, browser.Troubles(began), at(120), nil)); err != nil {
		t.Fatal(err)
	}
	doc := b.String()
	program, _, _ := strings.Cut(doc[strings.LastIndex(doc, "<script>"):], "</script>")
	for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser", "http:", "https:"} {
		if strings.Contains(program, bad) {
			t.Errorf("the program has %s", bad)
		}
	}
	for _, bad := range []string{"<link", " src=", "@import", "url("} {
		head, _, _ := strings.Cut(doc, `<script type="application/json"`)
		if strings.Contains(head, bad) {
			t.Errorf("the page has %s", bad)
		}
	}
	for _, want := range []string{"default-src 'none'", "connect-src 'none'", "script-src 'sha256-", "style-src 'sha256-"} {
		if !strings.Contains(doc, want) {
			t.Errorf("the policy lacks %s", want)
		}
	}
}

// 500 pods and a day, of which 25 crash all day, are at most 2 MB, and what is left out is said.
func TestADayOf500PodsFits(t *testing.T) {
	m := modelOf(t, browser.Day(began, 500), began.Add(24*time.Hour), nil)
	entries, attempts := 0, 0
	for _, r := range m.Rows {
		entries += len(r.Lines)
		for _, b := range r.Bars {
			if b.Kind == page.BarRun {
				attempts++
			}
		}
	}
	var b bytes.Buffer
	if err := page.Write(&b, m); err != nil {
		t.Fatal(err)
	}
	if b.Len() > page.MaxBytes || b.Len() < page.MaxBytes/5 {
		t.Errorf("%d bytes", b.Len())
	}
	folded := foldedIn(t, b.Bytes())
	t.Logf("%d rows, %d entries, %d attempts: %d bytes; left out: %+v", len(m.Rows), entries, attempts, b.Len(), folded)
	if folded.Entries == 0 || folded.Entries >= entries || folded.Rows != 0 {
		t.Errorf("%+v of %d entries are left out", folded, entries)
	}
}

// However much it is, it fits.
func TestEvenTooManyPodsFit(t *testing.T) {
	s := &browser.Story{}
	const pods = 9000
	for i := range pods {
		p := s.Pod(at(1), "namespace-with-a-long-name", fmt.Sprintf("pod-with-a-long-name-%d", i), "")
		c := p.Start(at(2), "container")
		if i == pods/2 {
			e := browser.Exit(at(3), 7)
			c.End(e)
			c.Crash(e, e, 1, "the last line")
		}
	}
	var b bytes.Buffer
	if err := page.Write(&b, modelOf(t, s, at(9), nil)); err != nil {
		t.Fatal(err)
	}
	if folded := foldedIn(t, b.Bytes()); b.Len() > page.MaxBytes || folded.Rows == 0 || folded.Rows > pods*95/100 {
		t.Errorf("%d bytes, %+v", b.Len(), folded)
	}
	if !strings.Contains(b.String(), "the last line") {
		t.Error("the only pod that has crashed is left out")
	}
}

// What is left out is the least important.
func TestWhatMattersIsKept(t *testing.T) {
	s := browser.Day(began, 100)
	p := s.Pod(at(30), "zz", "needle", "")
	c := p.Start(at(31), "c")
	e := browser.OOM(at(32))
	c.End(e)
	c.Crash(e, e, 1, "needle in a haystack")
	var b bytes.Buffer
	if err := page.Write(&b, modelOf(t, s, began.Add(24*time.Hour), nil)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"zz/needle", "needle in a haystack", "OOMKilled"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s is left out", want)
		}
	}
}

func foldedIn(t *testing.T, doc []byte) page.Folded {
	t.Helper()
	_, data, _ := strings.Cut(string(doc), `id="data">`)
	data, _, _ = strings.Cut(data, "</script>")
	var v struct{ Folded page.Folded }
	if err := json.Unmarshal([]byte(data), &v); err != nil {
		t.Fatal(err)
	}
	return v.Folded
}

// What is older than the window is forgotten.
func TestHistoryIsForgotten(t *testing.T) {
	s := &browser.Story{}
	s.Pod(at(1), "a", "old", "")
	s.Pod(at(30), "a", "new", "")
	h := page.NewHistory()
	for _, r := range s.Records() {
		if err := h.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	h.Forget(at(20))
	if m := h.Model(page.Window{From: at(20), To: at(40)}, nil); len(m.Rows) != 1 || m.Rows[0].Name != "a/new" {
		t.Errorf("%+v", m.Rows)
	}
}

// A page begins where the history does, and shows a quarter of an hour at least.
func TestThePageBeginsWithTheHistory(t *testing.T) {
	s := &browser.Story{}
	s.Pod(at(60), "a", "b", "")
	for _, w := range []struct{ to, want float64 }{{65, 50}, {100, 60}} {
		m := modelOf(t, s, at(w.to), nil)
		if got := m.From.Sub(began).Round(time.Minute).Minutes(); got != w.want {
			t.Errorf("until %v it begins at %v", w.to, got)
		}
	}
}

func BenchmarkADayOf500Pods(b *testing.B) {
	records := browser.Day(began, 500).Records()
	b.ReportMetric(float64(len(records)), "records")
	for b.Loop() {
		h := page.NewHistory()
		for _, r := range records {
			if err := h.Add(r); err != nil {
				b.Fatal(err)
			}
		}
		var doc bytes.Buffer
		if err := page.Write(&doc, h.Model(page.Window{From: began, To: began.Add(24 * time.Hour)}, nil)); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(doc.Len()), "bytes")
	}
}
