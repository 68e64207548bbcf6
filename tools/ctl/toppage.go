// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
)

// pageKind is the kind of a page of top.
type pageKind int

const (
	podsPage       pageKind = iota
	containersPage          // of a pod, or of all
	timelinePage            // of a container
	logPage                 // of a container
)

// row is a line of a table.
type row struct {
	id, name       string // NAMESPACE/POD or NAMESPACE/POD/CONTAINER
	cells          []string
	cpu, mem, disk uint64
	remark         string // the thing it waits for, or its end
	trouble        int    // what waits comes first, then what does not run, then restarts
}

// content is the content of a page: a table or a text.
type content struct {
	rows []row
	text []string
	node string // its load and memory
}

// nodeLine describes the load and the memory of the node, on which this command runs, too, and its
// pressure: which part of the last minute something waited.
func nodeLine(proc string) string {
	n := machine(proc)
	if n.MemTotal == 0 {
		return ""
	}
	line := fmt.Sprintf("load %.2f of %d, %s of %s free", n.Load1, n.CPUs, size(n.MemFree), size(n.MemTotal))
	for _, what := range slices.Sorted(maps.Keys(n.Pressure)) {
		if v := n.Pressure[what]; v >= 10 {
			line += fmt.Sprintf(", %s %.0f%%", what, v)
		}
	}
	return line
}

// topPage is one thing that top shows.
type topPage struct {
	kind   pageKind
	of     row // the pod or container; empty for the first page
	header []string

	content
	problem  error
	loaded   bool
	by       byte   // the order
	filter   string // only lines with it are shown
	typing   bool   // the person types it
	shown    []row  // those of the rows with it, in their order
	selected string // the ID of a row
	back     int    // how many lines of a text are below the screen
}

func newPage(kind pageKind, of row) *topPage {
	p := &topPage{kind: kind, of: of, by: 'c'}
	switch kind {
	case podsPage:
		p.header = []string{"POD", "STATE", "RUNNING", "RESTARTS", "CPU", "MEMORY", "DISK", "UNDER WAY"}
	case containersPage:
		p.header = []string{"CONTAINER", "STATE", "RESTARTS", "CPU", "MEMORY", "LIMIT", "DISK", "REMARK"}
		if of.id != "" {
			p.by = 'n'
		}
	}
	return p
}

// orders are the orders of tables by the key that chooses them.
var orders = map[byte]struct {
	title string
	by    func(a, b row) int
}{
	'c': {"CPU", func(a, b row) int { return cmp.Compare(b.cpu, a.cpu) }},
	'm': {"memory", func(a, b row) int { return cmp.Compare(b.mem, a.mem) }},
	'd': {"disk", func(a, b row) int { return cmp.Compare(b.disk, a.disk) }},
	'n': {"name", func(a, b row) int { return strings.Compare(lastName(a.name), lastName(b.name)) }},
	't': {"trouble", func(a, b row) int { return cmp.Compare(b.trouble, a.trouble) }},
	'p': {"pod", func(a, b row) int { return strings.Compare(a.name, b.name) }},
}

func lastName(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

func (p *topPage) table() bool { return p.header != nil }

// take shows an answer. After an error the last one stays.
func (p *topPage) take(c content, err error) {
	p.problem = err
	if err == nil {
		p.content, p.loaded = c, true
	}
	p.order()
}

func (p *topPage) order() {
	slices.SortFunc(p.rows, func(a, b row) int {
		return cmp.Or(orders[p.by].by(a, b), strings.Compare(a.name, b.name), strings.Compare(a.id, b.id))
	})
	p.shown = slices.DeleteFunc(slices.Clone(p.rows), func(r row) bool {
		return !p.has(strings.Join(r.cells, " ") + " " + r.name + " " + r.remark)
	})
}

// has reports whether a line has the text that the person looks for, in large or small letters.
func (p *topPage) has(line string) bool {
	return strings.Contains(strings.ToLower(line), strings.ToLower(p.filter))
}

// search carries out a key while the person types the text to look for.
func (p *topPage) search(key int) {
	switch {
	case key == keyEnter || key == '\n':
		p.typing = false
	case key == keyEsc:
		p.typing, p.filter = false, ""
	case key == 0x7f || key == '\b':
		_, n := utf8.DecodeLastRuneInString(p.filter)
		p.filter = p.filter[:len(p.filter)-n]
	case key >= ' ' && key < 0x100:
		p.filter += string([]byte{byte(key)}) // of a letter that has several
	}
	p.order()
}

// at is the index of the selected row, or 0 if it is gone.
func (p *topPage) at() int {
	return max(0, slices.IndexFunc(p.shown, func(r row) bool { return r.id == p.selected }))
}

// enter returns the page of the selected row, or nil.
func (p *topPage) enter() *topPage {
	switch {
	case p.kind == timelinePage:
		return newPage(logPage, p.of)
	case p.kind == logPage || len(p.shown) == 0:
		return nil
	case p.kind == podsPage:
		return newPage(containersPage, p.shown[p.at()])
	}
	return newPage(timelinePage, p.shown[p.at()])
}

// press carries out a key within the page.
func (p *topPage) press(key int, screen screenSize) {
	if _, known := orders[byte(key&0xff)]; known && key < 0x100 && p.table() {
		p.by = byte(key)
		p.order()
		return
	}
	move := 0
	height := max(1, p.room(screen))
	switch key {
	case '/':
		p.typing = true
	case keyUp, 'k':
		move = -1
	case keyDown, 'j':
		move = 1
	case keyPageUp:
		move = -height
	case keyPageDown, ' ':
		move = height
	case keyHome, 'g':
		move = -1 << 30
	case keyEnd, 'G':
		move = 1 << 30
	}
	if !p.table() {
		p.back = min(max(0, p.back-move), max(0, len(p.lines(screen.width))-height))
		return
	}
	if len(p.shown) > 0 {
		p.selected = p.shown[min(max(0, p.at()+move), len(p.shown)-1)].id
	}
}

// lines are the lines of a text at a width.
func (p *topPage) lines(width int) (lines []string) {
	for _, l := range p.text {
		if !p.has(l) {
			continue
		}
		lines = append(lines, wrapped(Visible(l), width)...)
	}
	return lines
}

// room is how many lines of a screen are for the page itself.
func (p *topPage) room(screen screenSize) int {
	if p.table() {
		return screen.height - 4 // the head, the names of the columns, the remark and the keys
	}
	return screen.height - 2
}

// draw returns the text that makes a terminal show the page: no line is longer than the terminal is
// wide, and there are not more lines than it has. Text from elsewhere is made visible and harmless.
func (p *topPage) draw(screen screenSize, now time.Time) string {
	head := now.Format(time.TimeOnly) + " - " + p.title()
	if p.node != "" {
		head += " - " + p.node
	}
	if p.problem != nil {
		head = "berth top - " + oneLine(client.Explain(p.problem).Error())
	}
	lines, chosen := []string{head}, -1
	height := max(0, p.room(screen))
	if p.table() {
		cells := []gridLine{{cells: p.header}}
		for _, r := range p.shown {
			cells = append(cells, gridLine{cells: append(slices.Clone(r.cells), oneLine(r.remark))})
		}
		var g grid
		all := strings.Split(strings.TrimSuffix(g.format(cells), "\n"), "\n")
		first := 0
		if at := p.at(); at >= height {
			first = at - height + 1
		}
		body := all[1:]
		body = body[min(first, len(body)):]
		body = body[:min(len(body), height)]
		lines = append(append(lines, all[0]), body...)
		if len(p.shown) > 0 {
			chosen = 2 + p.at() - first
		}
		for len(lines) < height+2 {
			lines = append(lines, "")
		}
		remark := ""
		if len(p.shown) > 0 {
			if r := p.shown[p.at()]; r.remark != "" {
				remark = r.name + ": " + oneLine(r.remark)
			}
		}
		lines = append(lines, remark)
	} else {
		body := p.lines(screen.width)
		p.back = min(p.back, max(0, len(body)-height))
		body = body[:len(body)-p.back]
		lines = append(lines, body[max(0, len(body)-height):]...)
		for len(lines) < height+1 {
			lines = append(lines, "")
		}
	}
	lines = append(lines, p.keys())
	lines = lines[:min(len(lines), max(screen.height, 1))]
	for i, l := range lines {
		l = fit(Visible(l), screen.width)
		if i == chosen || i == len(lines)-1 && i > 0 && i == screen.height-1 {
			l = inverse + l + strings.Repeat(" ", max(0, screen.width-len([]rune(l)))) + plain
		}
		lines[i] = l + clearLine
	}
	return homeCursor + strings.Join(lines, "\r\n") + clearRest
}

func (p *topPage) title() string {
	switch {
	case !p.loaded:
		return p.what() + ": waiting for an answer"
	case p.table() && p.filter != "":
		return fmt.Sprintf("%d of %d %s with %q, by %s", len(p.shown), len(p.rows), p.what(), p.filter, orders[p.by].title)
	case p.table():
		return fmt.Sprintf("%d %s, by %s", len(p.rows), p.what(), orders[p.by].title)
	case p.filter != "":
		return fmt.Sprintf("%s, lines with %q", p.what(), p.filter)
	case p.back > 0:
		return fmt.Sprintf("%s, %d lines further down", p.what(), p.back)
	}
	return p.what()
}

func (p *topPage) what() string {
	switch {
	case p.kind == podsPage:
		return "pods"
	case p.kind == containersPage && p.of.id == "":
		return "containers"
	case p.kind == containersPage:
		return "containers of " + p.of.name
	case p.kind == timelinePage:
		return "what happened to " + p.of.name
	}
	return "the log of " + p.of.name
}

// keys describes the available keys.
func (p *topPage) keys() string {
	switch {
	case p.typing:
		return " /" + p.filter + "_  Enter: keep it  Esc: show all"
	case p.kind == podsPage:
		return " q quit  / find  Enter open  Tab containers  sort c CPU m mem d disk t trouble"
	case p.kind == containersPage && p.of.id == "":
		return " q quit  / find  Enter open  Tab pods  sort c CPU m mem d disk p pod t trouble"
	case p.kind == containersPage:
		return " q quit  / find  Enter open  Esc back  sort c CPU m mem d disk n name t trouble"
	case p.kind == timelinePage:
		return " q quit  / find  Enter log  Esc back  arrows, page up and down scroll"
	}
	return " q quit  / find  Esc back  arrows, page up and down scroll"
}

// ask asks the service for the content of the page.
func (p *topPage) ask(ctx context.Context, c *client.Client) (content, error) {
	switch p.kind {
	case timelinePage:
		text, err := timelineText(ctx, c, p.of.id)
		return content{text: text}, err
	case logPage:
		text, err := logText(ctx, c, p.of.id)
		return content{text: text}, err
	}
	n, err := lookAround(ctx, c)
	if err != nil {
		return content{}, err
	}
	if p.kind == podsPage {
		rows := n.pods()
		n.reasons(ctx, c, rows)
		return content{rows: rows, node: nodeLine("/proc")}, nil
	}
	rows := n.containers(p.of.id)
	for i, r := range rows {
		at := slices.IndexFunc(n.cts, func(ct *runtimeapi.Container) bool { return ct.GetId() == r.id })
		if p.of.id != "" && r.remark == "" { // of all containers, that would be too many questions
			row := containerRow{common: &common{ID: r.id, State: word(n.cts[at].GetState().String())}}
			row.complete(ctx, c, nil)
			rows[i].remark = row.exit()
		}
	}
	return content{rows: rows, node: nodeLine("/proc")}, nil
}

// mostReasons is how many ends are asked for at one look.
const mostReasons = 32

// reasons adds the end of the container that ended last to the pods of which none runs.
func (a around) reasons(ctx context.Context, c *client.Client, rows []row) {
	asked := 0
	for i, r := range rows {
		cts := a.latest(r.id)
		if r.remark != "" || len(cts) == 0 || asked == mostReasons || slices.ContainsFunc(cts, a.ends.runs) {
			continue
		}
		last := slices.MaxFunc(cts, func(x, y *runtimeapi.Container) int { return cmp.Compare(x.GetCreatedAt(), y.GetCreatedAt()) })
		row := containerRow{common: &common{ID: last.GetId(), State: word(last.GetState().String())}}
		row.complete(ctx, c, nil)
		rows[i].remark = strings.TrimSpace(last.GetMetadata().GetName() + ": " + row.exit())
		asked++
	}
}

// around holds the service's answers for the tables.
type around struct {
	sandboxes []*runtimeapi.PodSandbox
	cts       []*runtimeapi.Container
	usage     map[string]containerUsage // by container
	under     underWay
	ends      ends
}

func lookAround(ctx context.Context, c *client.Client) (a around, err error) {
	if a.ends, err = endsOf(ctx, c); err != nil {
		return a, err
	}
	sandboxes, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return a, err
	}
	cts, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return a, err
	}
	stats, err := c.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	if err != nil {
		return a, err
	}
	a.under, err = askUnderWay(ctx, c)
	a.sandboxes, a.cts, a.usage = sandboxes.GetItems(), slices.Clone(cts.GetContainers()), map[string]containerUsage{}
	for _, st := range stats.GetStats() {
		a.usage[st.GetAttributes().GetId()] = containerUsage{stats: st}
	}
	slices.SortStableFunc(a.cts, func(x, y *runtimeapi.Container) int { // the latest attempt first
		return cmp.Compare(y.GetMetadata().GetAttempt(), x.GetMetadata().GetAttempt())
	})
	return a, err
}

// latest are the latest attempts of the containers of a pod.
func (a around) latest(pod string) (cts []*runtimeapi.Container) {
	named := map[string]bool{}
	for _, ct := range a.cts {
		if name := ct.GetMetadata().GetName(); ct.GetPodSandboxId() == pod && !named[name] {
			named[name] = true
			cts = append(cts, ct)
		}
	}
	return cts
}

func (a around) pods() []row {
	rows := make([]row, 0, len(a.sandboxes))
	for _, p := range a.sandboxes {
		r := row{id: p.GetId(), name: p.GetMetadata().GetNamespace() + "/" + p.GetMetadata().GetName()}
		running, restarts, measured := 0, uint32(0), false
		cts := a.latest(r.id)
		for _, ct := range cts {
			restarts += ct.GetMetadata().GetAttempt()
			if !a.ends.runs(ct) {
				continue
			}
			running++
			if u, ok := a.usage[ct.GetId()]; ok {
				measured = true
				r.cpu, r.mem, r.disk = r.cpu+u.cpu(), r.mem+u.mem(), r.disk+u.disk()
			}
		}
		r.remark = a.under.about(r.id, r.name)
		for _, ct := range cts {
			if s := a.under.about(ct.GetId(), r.name+"/"+ct.GetMetadata().GetName()); r.remark == "" && s != "" {
				r.remark = ct.GetMetadata().GetName() + " " + s
			}
		}
		if r.trouble = int(min(restarts, 1<<9)); running < len(cts) {
			r.trouble += 1 << 10
		}
		if r.remark != "" {
			r.trouble += 1 << 20
		}
		used := []string{"-", "-", "-"}
		if measured {
			used = []string{percent(r.cpu), size(r.mem), size(r.disk)}
		}
		r.cells = append([]string{
			r.name,
			a.ends.state(r.id, p.GetState()),
			fmt.Sprintf("%d/%d", running, len(cts)),
			strconv.FormatUint(uint64(restarts), 10),
		}, used...)
		rows = append(rows, r)
	}
	return rows
}

// percent is a usage of CPU as a part of one.
func percent(nanoCores uint64) string { return fmt.Sprintf("%.1f%%", float64(nanoCores)/1e7) }

// containers returns the containers of a pod, or of all running pods.
func (a around) containers(pod string) []row {
	var rows []row
	for _, p := range a.sandboxes {
		if pod != "" && p.GetId() != pod {
			continue
		}
		name := p.GetMetadata().GetNamespace() + "/" + p.GetMetadata().GetName()
		for _, ct := range a.latest(p.GetId()) {
			state := a.ends.state(ct.GetId(), ct.GetState())
			runs := state == "RUNNING"
			if pod == "" && !runs && state != endedState {
				continue
			}
			r := row{id: ct.GetId(), name: name + "/" + ct.GetMetadata().GetName(), remark: a.under.about(ct.GetId(), name+"/"+ct.GetMetadata().GetName())}
			used := []string{"-", "-", "-", "-"}
			if u, ok := a.usage[r.id]; ok && runs {
				r.cpu, r.mem, r.disk = u.cpu(), u.mem(), u.disk()
				used[0] = percent(r.cpu)
				used[1] = sizeOf(u.stats.GetMemory().GetWorkingSetBytes())
				if v := u.stats.GetMemory().GetAvailableBytes(); v != nil {
					used[2] = size(v.GetValue() + r.mem)
				}
				used[3] = sizeOf(u.stats.GetWritableLayer().GetUsedBytes())
			}
			shown := r.name
			if pod != "" {
				shown = ct.GetMetadata().GetName()
			}
			if r.trouble = int(min(ct.GetMetadata().GetAttempt(), 1<<9)); !runs {
				r.trouble += 1 << 10
			}
			if r.remark != "" {
				r.trouble += 1 << 20
			}
			r.cells = append([]string{
				shown,
				state,
				strconv.FormatUint(uint64(ct.GetMetadata().GetAttempt()), 10),
			}, used...)
			rows = append(rows, r)
		}
	}
	return rows
}

// timelineText explains the state of an object, its events, and its pending work.
func timelineText(ctx context.Context, c *client.Client, id string) ([]string, error) {
	h, err := c.Node.Timeline(ctx, &berthv1.TimelineRequest{Id: id})
	if err != nil {
		return nil, err
	}
	var text []string
	day := ""
	for _, e := range h.GetEntries() {
		at := e.GetAt().AsTime().Local()
		if d := at.Format(time.DateOnly); d != day {
			day = d
			text = append(text, day)
		}
		line := at.Format("15:04:05.000") + "  " + e.GetWhat()
		if e.GetDetail() != "" {
			line += "  (" + oneLine(e.GetDetail()) + ")"
		}
		if e.GetError() != "" {
			line += "  ERROR " + oneLine(e.GetError())
		}
		text = append(text, line)
	}
	text = append(text, "")
	if why, err := c.Node.Why(ctx, &berthv1.WhyRequest{Id: id}); err == nil { // another runtime has no answer
		for _, s := range []string{why.GetWhat(), why.GetWhy(), why.GetBefore()} {
			if s != "" {
				text = append(text, oneLine(s))
			}
		}
		if why.GetNow() != "" {
			text = append(text, "Now: "+oneLine(why.GetNow())+".")
		}
	}
	if h.GetLane() != nil {
		text = append(text, "Waiting: "+explainLane(h.GetLane()))
	}
	return text, nil
}

// logTail is how much of a log is shown, in bytes.
const logTail = 256 << 10

// logText is the end of the log of a container.
func logText(ctx context.Context, c *client.Client, id string) ([]string, error) {
	path, err := logPath(ctx, c, object{id: id, name: short(id)})
	if err != nil {
		return nil, err
	}
	f, err := openLog(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from := max(0, st.Size()-logTail)
	b, err := io.ReadAll(io.NewSectionReader(f, from, logTail))
	if err != nil {
		return nil, err
	}
	if from > 0 { // the text before the first end of a line is part of one
		b = b[bytes.IndexByte(b, '\n')+1:]
	}
	var text bytes.Buffer
	out, errOut := (&tags{}).writers("", &text, &text) // which keep a line together
	r := &logReader{path: path, stamps: true, out: out, err: errOut, partial: map[string]bool{}, skip: map[string]bool{}}
	for line := range bytes.Lines(b) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is still being written
		}
		if err := r.line(line); err != nil {
			return nil, err
		}
	}
	out.end()
	errOut.end()
	if text.Len() == 0 {
		return []string{"The log is empty."}, nil
	}
	return strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n"), nil
}
