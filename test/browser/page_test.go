// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth/internal/base/event"
	"berth/tools/page"
)

var began = time.Date(2026, 11, 23, 18, 0, 0, 0, time.UTC)

func modelOf(t *testing.T, s *Story, from, to time.Time, live *page.Live) page.Model {
	t.Helper()
	h := page.NewHistory()
	for _, r := range s.Records() {
		if err := h.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	m := h.Model(page.Window{From: from, To: to}, live)
	m.Host, m.Version = "node-7", "v1.4.1"
	return m
}

func report(t *testing.T, m page.Model) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "report.html")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := page.Write(f, m); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func n(v uint64) *uint64 { return &v }

// now is how things are at the end of the troubles.
func now(s *Story, at time.Time) *page.Live {
	l := &page.Live{
		At:         at,
		Conditions: []page.Condition{{Name: "RuntimeReady", Ready: true}, {Name: "NetworkReady", Ready: true}},
		Node: page.NodeUse{
			CPUs:      8,
			Load1:     1.42,
			MemTotal:  32 << 30,
			MemFree:   21 << 30,
			PodsReady: 8,
			Running:   9,
			NanoCores: 1_310_000_000,
			Memory:    6 << 30,
			DiskTotal: 100 << 30,
			DiskFree:  41 << 30,
			Pressure:  map[string]float64{"cpu": 2.4, "memory": 0, "io": 31},
		},
	}
	seen := map[string]int{}
	image := map[string]string{}
	for i, t := range s.told {
		name := t.of.Namespace + "/" + t.of.Pod
		if e, ok := t.Event.(event.ImagePulled); ok {
			image[name] = e.Image
		}
		if t.of.Pod == "" || t.of.Container == "" {
			continue
		}
		k, ok := seen[name]
		if !ok {
			k = len(l.Pods)
			seen[name] = k
			l.Pods = append(l.Pods, page.PodUse{
				Row: name, ID: t.of.Sandbox, IP: fmt.Sprintf("10.244.%d.%d", 10+k/250, 2+k%250), Created: t.At.Stamp(), Ready: true,
				NanoCores: n(uint64(i%40) * 9_000_000), Memory: n(uint64(20+i%300) << 20),
			})
		}
		p := &l.Pods[k]
		j := slices.IndexFunc(p.Containers, func(u page.ContainerUse) bool { return u.Name == t.of.Container })
		if j < 0 {
			j = len(p.Containers)
			p.Containers = append(p.Containers, page.ContainerUse{Name: t.of.Container})
		}
		u := &p.Containers[j]
		switch e := t.Event.(type) {
		case event.ContainerRunning:
			*u = page.ContainerUse{Name: t.of.Container, ID: t.ID, State: "running", Image: cmp.Or(image[name], "registry.k8s.io/kube-proxy:v1.34.1"), Restarts: t.of.Attempt}
			u.NanoCores, u.Memory, u.Limit, u.Disk = n(uint64(i%40)*9_000_000), n(uint64(20+i%300)<<20), n(512<<20), n(uint64(i%9)<<20)
		case event.ExitSettled:
			code := int32(e.Exit.Code)
			*u = page.ContainerUse{Name: u.Name, ID: t.ID, State: "exited", Image: u.Image, Restarts: u.Restarts, Code: &code, Reason: e.Exit.Reason}
		}
		if t.of.Pod == "import-nightly" && len(l.Held) == 0 {
			l.Held = append(l.Held, page.Held{
				ID:    t.ID,
				Kind:  "step",
				Age:   600,
				Since: at.Add(-10 * time.Minute),
				Tries: 14,
				Err:   "unmount rootfs: device or resource busy",
				Text:  "waits for the next attempt of the step release, for 10 min; attempt 14 has failed: unmount rootfs: device or resource busy; the next attempt in 40 s.",
			})
		}
	}
	return l
}

// The report opens from a file, asks nobody for anything, and can be used with the keys alone. Its
// pictures are in build/page.
func TestTheReportOpensWithoutANetwork(t *testing.T) {
	s := Troubles(began)
	end := began.Add(2 * time.Hour)
	m := modelOf(t, s, began, end, now(s, end))
	for i, r := range m.Rows {
		if r.Pod == "api-5f7d8c9b6d-kx2lp" {
			m.Rows[i].Why = []string{
				r.Name + "/api has failed 26 times since 18:10, the last time 3 minutes ago, with code 1.",
				"The program itself ended: it was asked by nobody, and no limit was reached.",
				"Now: the kubelet starts it again in about 2 minutes.",
			}
		}
	}
	path := report(t, m)
	p := open(t)
	p.scheme("light")
	p.visitFile(path)
	if got := p.eval("document.querySelectorAll('#labels .label').length"); got != fmt.Sprint(len(m.Rows)) {
		t.Errorf("%s rows are labelled, want %d", got, len(m.Rows))
	}
	p.picture("light")

	// The keys: the second pod, its details, the next mark, and out again.
	p.eval("document.getElementById('scroll').focus()")
	p.key("ArrowDown")
	p.key("ArrowDown")
	p.until("document.querySelectorAll('#labels .label')[1].getAttribute('aria-selected') === 'true'")
	second := p.eval("document.querySelector('#labels [aria-selected=true]').dataset.row")
	if active := p.eval("document.getElementById(document.getElementById('scroll').getAttribute('aria-activedescendant')).dataset.row"); active != second {
		t.Errorf("%s is active, and %s is chosen", active, second)
	}
	p.key("Enter")
	p.until("!document.getElementById('detail').hidden")
	p.key("Escape")
	p.until("document.getElementById('detail').hidden && document.activeElement.id === 'scroll'")
	p.key("?")
	p.until("document.getElementById('help').open")
	p.picture("help")
	p.key("Escape")

	// The filter, by a word of a log.
	p.key("/")
	p.until("document.activeElement.id === 'filter'")
	p.eval("document.getElementById('filter').value = 'connection refused'; document.getElementById('filter').dispatchEvent(new Event('input'))")
	p.until("document.querySelectorAll('#labels .label').length === 1")
	p.key("Enter")
	p.key("Enter")
	p.until("document.querySelector('#detail pre')?.textContent.includes('giving up after 3 attempts')")
	p.eval("document.getElementById('filter').value = ''; document.getElementById('filter').dispatchEvent(new Event('input'))")
	p.until("document.querySelectorAll('#labels .label').length > 5")
	p.picture("detail")
	p.scheme("dark")
	p.picture("dark")

	// A reason: OOM kills.
	p.key("Escape")
	p.eval("[...document.querySelectorAll('#legend button')].find((b) => b.dataset.kind === 'oom').click()")
	p.until("document.querySelectorAll('#labels .label').length === 1")
	p.eval("[...document.querySelectorAll('#legend button')].find((b) => b.dataset.kind === 'oom').click()")

	// What is held says why.
	p.until("[...document.querySelectorAll('.label')].some((l) => l.dataset.row === 'batch/import-nightly')")
	p.eval("[...document.querySelectorAll('.label')].find((l) => l.dataset.row === 'batch/import-nightly').click()")
	p.until("document.getElementById('detail').textContent.includes('device or resource busy')")
	p.scheme("light")
	p.picture("held")

	// The wheel and the pointer.
	before := p.eval("document.getElementById('ranges').lastChild.getAttribute('aria-pressed')")
	p.mouse("mouseWheel", 700, 400, map[string]any{"deltaX": 0, "deltaY": -400, "modifiers": 2})
	p.until("document.getElementById('ranges').lastChild.getAttribute('aria-pressed') === 'false'")
	if before != `"true"` {
		t.Errorf("the page does not begin with all of the time: %s", before)
	}
	p.key("0")
	p.key("Escape")
	p.until("document.getElementById('detail').hidden")
	p.eval("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
	p.click(1000, 420)
	p.until("!document.getElementById('detail').hidden")

	p.key("Escape")
	p.size(420, 820)
	p.eval("[...document.querySelectorAll('.label')].find((l) => l.dataset.row.startsWith('payments/api')).click()")
	p.picture("narrow")
	if got := p.eval("document.documentElement.scrollWidth"); got != "420" {
		t.Errorf("the page is %s pixels wide on a screen of 420", got)
	}
	p.quiet("file://")
}

// What a pod writes is shown as it is, and does not run.
func TestHostileTextsAreShownAsTheyAre(t *testing.T) {
	const hostile = `</script><script>alert(1)</script><img src=x onerror=alert(1)>`
	s := &Story{}
	p := s.Pod(began, "n", "p"+hostile, "")
	c := p.Start(began.Add(time.Minute), "c"+hostile)
	e := Exit(began.Add(2*time.Minute), 1)
	e.Detail = hostile
	c.End(e)
	c.Crash(e, e, 1, hostile)
	b := open(t)
	b.visitFile(report(t, modelOf(t, s, began, began.Add(time.Hour), &page.Live{Warnings: []string{hostile}})))
	b.eval("document.querySelector('.label').click()")
	b.until("document.querySelector('#detail pre') !== null")
	for _, where := range []string{"#detail h2", "#detail pre", "#notices", ".label"} {
		var text string
		_ = json.Unmarshal([]byte(b.eval("document.querySelector('"+where+"').textContent")), &text)
		if !strings.Contains(text, hostile) {
			t.Errorf("%s says %q", where, text)
		}
	}
	if got := b.eval("document.images.length + document.scripts.length"); got != "2" {
		t.Errorf("%s pictures and scripts, want 2", got)
	}
	b.quiet("file://")
}

// The page of 500 pods and a day opens. How long that takes is printed, and not asserted.
func TestADayOf500PodsOpens(t *testing.T) {
	day := began.Add(-18 * time.Hour)
	m := modelOf(t, Day(day, 500), day, day.Add(24*time.Hour), nil)
	path := report(t, m)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	p := open(t)
	p.visitFile(path)
	p.picture("500")
	t.Logf("%d pods, %d bytes: drawn %s ms after its program began, %s ms after it was asked for", len(m.Rows), info.Size(),
		p.eval("Number(document.documentElement.dataset.ready)"),
		p.eval("Math.round(performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd)"))
	t.Logf("one picture while it is moved: %s ms", p.eval(`(async () => {
		const frame = () => new Promise((done) => requestAnimationFrame(done));
		document.getElementById('scroll').scrollTop = 300;
		const t = performance.now();
		for (let i = 0; i < 20; i++) { document.dispatchEvent(new KeyboardEvent('keydown', { key: i % 2 ? 'ArrowLeft' : '+' })); await frame(); }
		return Math.round((performance.now() - t) / 20);
	})()`))
	if got := p.eval("document.getElementById('count').textContent"); got != fmt.Sprintf("%q", fmt.Sprintf("%d pods", len(m.Rows))) {
		t.Errorf("the page has %s, want %d", got, len(m.Rows))
	}
	if got := p.eval("document.getElementById('notices').textContent"); !strings.Contains(got, "left out") {
		t.Errorf("the page does not say what is left out: %s", got)
	}
	p.quiet("file://")
}

// The page of berth ui shows what happens meanwhile.
func TestTheLivePageGoesOn(t *testing.T) {
	s := Troubles(began)
	end := began.Add(2 * time.Hour)
	history := page.NewHistory()
	for _, r := range s.Records() {
		if err := history.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	var late atomic.Bool
	told := false
	token := page.NewToken()
	handler := page.NewHandler(token, page.Source{Model: func(context.Context) (page.Model, error) {
		if late.Load() && !told {
			told = true
			more := &Story{}
			names := event.Names{Namespace: "shop", Pod: "late", Container: "c"}
			more.Tell(end, "late", names, event.ExitSettled{Exit: Exit(end, 3)})
			r := more.Records()[0]
			r.Number = history.Last() + 1
			if err := history.Add(r); err != nil {
				return page.Model{}, err
			}
		}
		m := history.Model(page.Window{From: began, To: end.Add(time.Second)}, now(s, end))
		m.Host = "node-7"
		return m, nil
	}, Why: func(_ context.Context, row string) ([]string, error) {
		return []string{row + " ended 2 minutes ago with code 3."}, nil
	}, Log: func(_ context.Context, id string, w io.Writer) error {
		_, err := fmt.Fprintf(w, "the log of %s\n", id)
		return err
	}})
	server := httptest.NewServer(handler)
	defer server.Close()
	p := open(t)
	p.visit(server.URL + "/?token=" + token)
	rows := p.eval("document.querySelectorAll('#labels .label').length")
	late.Store(true)
	p.until("[...document.querySelectorAll('.label')].some((l) => l.dataset.row === 'shop/late')")
	p.eval("[...document.querySelectorAll('.label')].find((l) => l.dataset.row === 'shop/late').click()")
	p.until("document.querySelector('#detail .why')?.textContent === 'shop/late ended 2 minutes ago with code 3.'")
	p.eval("[...document.querySelectorAll('.label')].find((l) => l.dataset.row === 'shop/search-0').click()")
	p.until("document.querySelector('#detail a')?.textContent === 'live log'")
	if log := p.eval("fetch(document.querySelector('#detail a').href).then((r) => r.text())"); len(log) != len("the log of ")+64+len(`"\n"`) {
		t.Errorf("the log is %s", log)
	}
	p.picture("live")
	p.quiet(server.URL + "/")
	for _, u := range p.asked() {
		if !strings.Contains(u, "token="+token) {
			t.Errorf("the page asked for %s", u)
		}
	}
	if rows == p.eval("document.querySelectorAll('#labels .label').length") {
		t.Error("there are as many rows as before")
	}
}

// cut lists what is wider than its place, or where two lines stand in place of one.
const cut = `(() => {
	const bad = [];
	for (const e of document.querySelectorAll('#top *, #tools *, #legend *, .label *, #cards *')) {
		if (e.clientWidth && e.scrollWidth > e.clientWidth + 1) bad.push(e.className + ' ' + e.textContent + ' has ' + e.clientWidth + ' of ' + e.scrollWidth);
	}
	for (const id of ['top', 'tools', 'legend']) {
		const tops = new Set([...document.getElementById(id).children].filter((e) => e.offsetHeight).map((e) => Math.round((e.offsetTop + e.offsetHeight / 2) / 8)));
		if (tops.size > 1) bad.push(id + ' has several lines');
	}
	return bad;
})()`

// The page is looked at with 1, 30 and 300 pods, at the widths of a phone, a laptop and a large
// screen, in the light and in the dark. On a laptop nothing is cut, and no line is broken.
func TestNothingIsCut(t *testing.T) {
	p := open(t)
	for _, pods := range []int{1, 30, 300} {
		s := &Story{}
		if pods > 1 {
			s = Troubles(began)
		}
		s.Workloads(began, pods-len(s.pods()))
		end := began.Add(2 * time.Hour)
		m := modelOf(t, s, began, end, now(s, end))
		for i, r := range m.Rows {
			m.Rows[i].Why = []string{r.Name + " runs since 1 h 50 min."}
		}
		path := report(t, m)
		for _, width := range []int{400, 1280, 1400, 1440, 2560} {
			p.size(width, map[bool]int{true: 820, false: 860}[width < 900])
			p.visitFile(path)
			for _, scheme := range []string{"light", "dark"} {
				p.scheme(scheme)
				p.picture(fmt.Sprintf("%d-pods-%d-%s", pods, width, scheme))
			}
			p.scheme("light")
			for _, dense := range []string{"dense", "loose"} {
				p.eval("document.getElementById('dense').click()")
				p.eval("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
				if bad := p.eval(cut); width >= 1280 && bad != "[]" {
					t.Errorf("%d pods at %d, %s: %s", pods, width, dense, bad)
				}
				if dense == "dense" && width == 1440 {
					p.picture(fmt.Sprintf("%d-pods-dense", pods))
				}
			}
		}
	}
	p.quiet("file://")
}

// Seventeen kills of one Deployment are one row, which opens.
func TestAWorkloadIsOneRow(t *testing.T) {
	s := &Story{}
	s.Workloads(began, 68)
	end := began.Add(2 * time.Hour)
	p := open(t)
	p.visitFile(report(t, modelOf(t, s, began, end, now(s, end))))
	first := "document.querySelector('.label')"
	if got := p.eval(first + ".getAttribute('aria-label')"); !strings.Contains(got, "search/ranker, 17 pods, 17 OOM kills") {
		t.Errorf("the first row is %s", got)
	}
	if got := p.eval("document.querySelector('.card .item').textContent"); !strings.Contains(got, "ranker 17 OOM kills") {
		t.Errorf("the summary begins with %s", got)
	}
	p.eval(first + ".click()")
	p.until(first + ".getAttribute('aria-expanded') === 'true' && document.querySelectorAll('.label.within').length === 17")
	p.picture("opened")
	p.key("Enter")
	p.until(first + ".getAttribute('aria-expanded') === 'false'")
	p.key("g")
	p.until("document.querySelectorAll('[aria-expanded]').length === 0")
	p.key("g")
	p.eval("document.querySelector('.card .item').click()")
	p.until("document.getElementById('detail').textContent.includes('ranker-7c5d8f9b6d-')")
	p.eval("document.querySelector('#detail .id button').click()")
	p.until("['Copied', 'Selected'].includes(document.querySelector('#detail .id button').textContent)")
	if got := p.eval("getSelection().toString().length"); got != "64" {
		t.Errorf("%s letters of an ID are copied", got)
	}
	p.quiet("file://")
}

// pods are the names of the pods of a story.
func (s *Story) pods() map[string]bool {
	names := map[string]bool{}
	for _, t := range s.told {
		if t.of.Pod != "" {
			names[t.of.Namespace+"/"+t.of.Pod] = true
		}
	}
	return names
}
