// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (f *fake) uses(id, name string, cpu, mem uint64) {
	f.stats = append(f.stats, &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{Id: id, Metadata: &runtimeapi.ContainerMetadata{Name: name}},
		Cpu:        &runtimeapi.CpuUsage{UsageNanoCores: &runtimeapi.UInt64Value{Value: cpu}},
		Memory:     &runtimeapi.MemoryUsage{WorkingSetBytes: &runtimeapi.UInt64Value{Value: mem}},
	})
}

// busy is a fake with two containers that use something.
func busy() *fake {
	f := services()
	f.addContainer("ccc444", "aab222", "cache", 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	f.uses("bbb222", "nginx", 15e8, 1<<20)
	f.uses("ccc444", "cache", 25e6, 8<<30)
	f.uses("bbc333", "sql", 1, 1) // it has ended
	return f
}

func TestStats(t *testing.T) {
	at := serveFake(t, busy())
	out, problem := berth(t, at, "stats")
	says(t, "stats", out+problem, "nginx", "default/web", "150.0%", "1024 KiB", "cache", "2.5%", "8192 MiB")
	if strings.Contains(out, "sql") {
		t.Errorf("stats shows what has ended:\n%s", out)
	}
	for _, name := range []string{"cache", "db"} {
		if out, _ = berth(t, at, "stats", name); !strings.Contains(out, "cache") || strings.Contains(out, "nginx") {
			t.Errorf("stats %s:\n%s", name, out)
		}
	}
}

func TestTopSortsAndQuits(t *testing.T) {
	at := serveFake(t, busy())
	_, problem := berth(t, at, "top")
	says(t, "top without a terminal", problem, "berth stats")
	p := sitDown(t, 100, 24)
	done := p.begin(t.Context(), at, "top")
	p.screen.until(t, "2 pods, by CPU", "default/web")
	if _, shown, _ := strings.Cut(p.screen.String(), "by CPU"); strings.Index(shown, "default/web") > strings.Index(shown, "default/db") {
		t.Error("it is not sorted by CPU")
	}
	p.Type(t, "m")
	p.screen.until(t, "by memory")
	p.Type(t, "x") // is ignored
	p.Type(t, "q")
	if err := <-done; err != nil || p.mode(t) != p.before {
		t.Errorf("got %v", err)
	}
	p.screen.until(t, leaveScreen)
	_, after, _ := strings.Cut(p.screen.String(), "by memory")
	if strings.Index(after, "default/web") < strings.Index(after, "default/db") {
		t.Errorf("it is not sorted by memory: %q", after)
	}
}

// A person who saw that something hung had to look up its name, and to type three commands.
func TestTopGoesFromPodToContainerToTimelineToLog(t *testing.T) {
	f := busy()
	f.lanes[0].Id = "bbb222"
	f.cts[1].LogPath = logFile(t, append(slices.Clone(sample), stampB+" stdout F \x1b[2Jgone")...)
	at := serveFake(t, f)
	p := sitDown(t, 200, 24)
	done := p.begin(t.Context(), at, "top", "--interval", "100ms")
	p.screen.until(t, "2 pods, by CPU", "default/web: nginx goes through the step release; attempt 3 has failed", "unmount: busy")
	p.Type(t, "\x1b[B\x1b[A\r") // down and up again
	p.screen.until(t, "1 containers of default/web, by name", "default/web/nginx: goes through the step release; attempt 3 has failed")
	p.Type(t, "\x1bOC")
	p.screen.until(t, "what happened to default/web/nginx", "exit settled  (code=42)  ERROR late")
	p.Type(t, "\r")
	p.screen.until(t, "the log of default/web/nginx", stampA+" two and more", stampB+` \u001b[2Jgone`)
	p.Type(t, "\r") // there is nothing behind a log
	shown := len(p.screen.String())
	p.Type(t, "\x1b")
	since := func(text string) {
		t.Helper()
		for range 10_000 {
			if strings.Contains(p.screen.String()[shown:], text) {
				shown = len(p.screen.String())
				return
			}
			time.Sleep(time.Millisecond)
		}
		t.Fatalf("no %q after it", text)
	}
	since("what happened to default/web/nginx")
	p.Type(t, "\x1b[D")
	since("containers of default/web")
	p.Type(t, "\x7f")
	since("2 pods")
	p.Type(t, "\x1b") // there is nothing before it
	p.Type(t, "\t")
	since("2 containers, by CPU")
	p.Type(t, "\t")
	since("2 pods")
	p.Type(t, "\x03")
	if err := <-done; err != nil || p.mode(t) != p.before {
		t.Errorf("got %v", err)
	}
	if strings.Contains(p.screen.String(), "\x1b[2J") {
		t.Error("what a container wrote acts on the terminal")
	}
}

func TestTheKeysOfATerminal(t *testing.T) {
	got := keysOf([]byte("q\x1b[A\x1bOB\x1b[5~\x1b[1;5C\x1b[200~x\x1b\x1b[H\x1b"))
	if want := []int{'q', keyUp, keyDown, keyPageUp, 'x', keyEsc, keyHome, keyEsc}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The row that was chosen stays chosen where the order changes, and is on the screen.
func TestTopKeepsWhatIsChosen(t *testing.T) {
	p := newPage(podsPage, row{})
	list := func(n int) (c content) {
		for i := range n {
			c.rows = append(c.rows, row{id: fmt.Sprint("id", i), name: fmt.Sprintf("a/%02d", i), cells: []string{fmt.Sprintf("a/%02d", i)}, cpu: uint64(i)})
		}
		return c
	}
	screen := screenSize{60, 10}
	p.take(list(50), nil)
	p.press(keyPageDown, screen)
	p.press(keyDown, screen)
	chosen := p.rows[p.at()].id
	for _, k := range []int{'n', 'm', 'c'} {
		p.press(k, screen)
		if p.rows[p.at()].id != chosen || !strings.Contains(p.draw(screen, time.Now()), inverse+p.rows[p.at()].name) {
			t.Errorf("after %c: %q", k, p.draw(screen, time.Now()))
		}
	}
	p.press(keyEnd, screen)
	if p.at() != 49 {
		t.Errorf("the end is row %d", p.at())
	}
	p.press(keyHome, screen) // the one that uses most, which is gone then
	p.take(list(3), nil)
	if p.at() != 0 || p.enter().of.name != "a/02" {
		t.Errorf("row %d", p.at())
	}
	text := newPage(logPage, row{})
	text.take(content{text: strings.Split(strings.Repeat("line\n", 99)+strings.Repeat("x", 130), "\n")}, nil)
	if got := text.draw(screen, time.Now()); strings.Count(got, "line") != 5 || strings.Count(got, "x") != 130 {
		t.Errorf("got %q", got)
	}
	text.press(keyHome, screen)
	if got := text.draw(screen, time.Now()); strings.Count(got, "line") != 8+1 || !strings.Contains(got, "94 lines further down") {
		t.Errorf("got %q", got)
	}
	if text.enter() != nil || newPage(podsPage, row{}).enter() != nil {
		t.Error("there is something behind nothing")
	}
}

// Who looked for one pod of a full node had to go through all of them.
func TestTopFindsLinesWithAText(t *testing.T) {
	p := newPage(podsPage, row{})
	of := func(name, remark string, trouble int) row {
		return row{id: name, name: name, cells: []string{name}, remark: remark, trouble: trouble}
	}
	tp := &top{pages: []*topPage{p}, screen: screenSize{80, 24}}
	p.take(content{rows: []row{of("a/web", "", 0), of("a/Größe", "Grund", 1), of("b/db", "web: 137 OOMKilled", 2)}}, nil)
	shown := func(want ...string) {
		t.Helper()
		var names []string
		for _, r := range p.shown {
			names = append(names, r.name)
		}
		if !slices.Equal(names, want) {
			t.Errorf("with %q: %q, want %q", p.filter, names, want)
		}
	}
	for _, k := range keysOf([]byte("t/WEBq\x7f")) {
		tp.press(k)
	}
	shown("b/db", "a/web")
	says(t, "the screen", p.draw(tp.screen, time.Now()), `2 of 3 pods with "WEB", by trouble`, "/WEB_")
	tp.press(keyEnter)
	p.take(p.content, nil)
	shown("b/db", "a/web")
	tp.press(keyDown)
	if next := p.enter(); next == nil || next.of.name != "a/web" {
		t.Errorf("Enter leads to %+v", next)
	}
	tp.press(keyEsc)
	shown("b/db", "a/Größe", "a/web")
	for _, k := range keysOf([]byte("/größx\x7f\x7fö\x7f\r")) {
		tp.press(k)
	}
	shown("a/Größe")
	text := newPage(logPage, row{})
	text.take(content{text: []string{"fine", "an ERROR", "fine"}}, nil)
	text.filter = "error"
	if got := text.lines(80); !slices.Equal(got, []string{"an ERROR"}) {
		t.Errorf("the log: %q", got)
	}
}

// While a service that hangs was asked, neither q nor Ctrl-C was looked at.
func TestTopQuitsWhileNobodyAnswers(t *testing.T) {
	at := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, key := range []string{"q", "\x03"} {
		p := sitDown(t, 100, 24)
		done := p.begin(t.Context(), at, "top")
		p.screen.until(t, enterScreen)
		p.Type(t, key)
		select {
		case err := <-done:
			if err != nil || p.mode(t) != p.before {
				t.Errorf("%q: got %v", key, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%q does not quit", key)
		}
	}
}

func TestTopFitsTheTerminal(t *testing.T) {
	var c content
	for i := range 100 {
		c.rows = append(c.rows, row{id: fmt.Sprint(i), name: "größer/p", cells: []string{"größer/p", "READY"}, remark: strings.Repeat("because ", 50)})
		c.text = append(c.text, strings.Repeat("größer ", i))
	}
	style := strings.NewReplacer(inverse, "", plain, "", clearLine, "")
	for _, kind := range []pageKind{podsPage, containersPage, timelinePage, logPage} {
		for _, s := range []screenSize{{80, 24}, {200, 50}, {20, 5}, {5, 3}, {3, 2}, {1, 1}, {500, 300}, {0, 0}} {
			p := newPage(kind, row{id: "x", name: "default/web"})
			for _, empty := range []bool{true, false} {
				if !empty {
					p.take(c, nil)
				}
				for _, k := range []int{keyEnd, keyHome, keyPageDown} {
					p.press(k, s)
					shown := strings.TrimSuffix(strings.TrimPrefix(p.draw(s, time.Now()), homeCursor), clearRest)
					rows := strings.Split(shown, "\r\n")
					if len(rows) > max(s.height, 1) {
						t.Errorf("%v: %d lines", s, len(rows))
					}
					for _, l := range rows {
						if n := utf8.RuneCountInString(style.Replace(l)); n > s.width {
							t.Errorf("%v: a line is %d wide: %q", s, n, l)
						}
					}
				}
			}
		}
	}
}

// The line of the node has what the kernel says, and nothing in place of what it does not.
func TestTheNodesLineSaysWhatTheKernelKnows(t *testing.T) {
	proc := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(proc, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := nodeLine(proc); got != "" {
		t.Errorf("without a /proc: %q", got)
	}
	write("loadavg", "1.42 0.90 0.50 2/700 4711\n")
	write("meminfo", "MemTotal:       33554432 kB\nMemFree:         1048576 kB\nMemAvailable:   8388608 kB\n")
	want := fmt.Sprintf("load 1.42 of %d, 8192 MiB of 32 GiB free", runtime.NumCPU())
	if got := nodeLine(proc); got != want || machine(proc).Pressure != nil {
		t.Errorf("%q, want %q", got, want)
	}
	write("pressure/cpu", "some avg10=0.00 avg60=9.99 avg300=0.00 total=1\n")
	write("pressure/io", "some avg10=0.00 avg60=31.40 avg300=0.00 total=1\nfull avg10=1.00 avg60=2.00 avg300=0.00 total=1\n")
	write("pressure/memory", "")
	if got := nodeLine(proc); got != want+", io 31%" {
		t.Errorf("%q", got)
	}
	if got := machine(proc).Pressure; len(got) != 2 || got["cpu"] != 9.99 {
		t.Errorf("the pressure is %v", got)
	}
}
