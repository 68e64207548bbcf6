// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a browser may take for anything, on a machine that does other things as
// well.
const patience = 90 * time.Second

// chromium is a headless browser that a test steers through two pipes.
type chromium struct {
	t   *testing.T
	out *os.File

	mu      sync.Mutex
	next    int
	answers map[int]chan answer
	gone    bool
}

type answer struct {
	result json.RawMessage
	err    string
}

// tab is a page of a browser.
type tab struct {
	b       *chromium
	session string
	loaded  chan struct{}

	mu       sync.Mutex
	problems []string // what the console, or an exception, said
	requests []string // URLs
}

func (b *chromium) message(m json.RawMessage, tabs func(session string) *tab) {
	var v struct {
		ID        int             `json:"id"`
		Session   string          `json:"sessionId"`
		Method    string          `json:"method"`
		Params    json.RawMessage `json:"params"`
		Result    json.RawMessage `json:"result"`
		Exception *struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(m, &v) != nil {
		return
	}
	if v.ID != 0 {
		b.mu.Lock()
		c := b.answers[v.ID]
		delete(b.answers, v.ID)
		b.mu.Unlock()
		a := answer{result: v.Result}
		if v.Exception != nil {
			a.err = v.Exception.Message
		}
		if c != nil {
			c <- a
		}
		return
	}
	p := tabs(v.Session)
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch v.Method {
	case "Runtime.exceptionThrown":
		p.problems = append(p.problems, string(v.Params))
	case "Runtime.consoleAPICalled":
		p.problems = append(p.problems, string(v.Params))
	case "Log.entryAdded":
		p.problems = append(p.problems, string(v.Params))
	case "Network.requestWillBeSent":
		var r struct{ Request struct{ URL string } }
		_ = json.Unmarshal(v.Params, &r)
		p.requests = append(p.requests, r.Request.URL)
	case "Page.loadEventFired":
		select {
		case p.loaded <- struct{}{}:
		default:
		}
	}
}

// open starts a browser with one page. It ends with the test.
func open(t *testing.T) *tab {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("there is no chromium; `make page` installs Debian's")
	}
	in, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	theirIn, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--headless=new", "--remote-debugging-pipe", "--user-data-dir=" + t.TempDir(), "--no-first-run", "--disable-gpu",
		"--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--force-color-profile=srgb",
		"--disable-extensions", "--disable-sync", "about:blank",
	}
	if os.Geteuid() == 0 {
		args = append([]string{"--no-sandbox"}, args...)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	cmd.Env = append(os.Environ(), "TZ=UTC")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirIn.Close()
	_ = theirOut.Close()
	b := &chromium{t: t, out: out, answers: map[int]chan answer{}}
	p := &tab{b: b, loaded: make(chan struct{}, 1)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		r := bufio.NewReaderSize(in, 1<<20)
		for {
			m, err := r.ReadBytes(0)
			if err != nil {
				break
			}
			b.message(m[:len(m)-1], func(session string) *tab {
				if session == "" {
					return nil
				}
				return p
			})
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.gone = true
		for _, c := range b.answers {
			c <- answer{err: "the browser has ended"}
		}
		b.answers = nil
	}()
	t.Cleanup(func() {
		_, _ = b.call("", "Browser.close", nil)
		_ = out.Close()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		// Its children write into its directory for as long as they live.
		for end := time.Now().Add(patience); syscall.Kill(-cmd.Process.Pid, 0) == nil && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		<-read
		_ = in.Close()
	})
	var target struct{ TargetID string }
	b.must("", "Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	b.must("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	p.session = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		p.must(domain+".enable", nil, nil)
	}
	p.size(1440, 860)
	return p
}

func (b *chromium) call(session, method string, params map[string]any) (json.RawMessage, error) {
	b.mu.Lock()
	if b.gone {
		b.mu.Unlock()
		return nil, fmt.Errorf("%s: the browser has ended", method)
	}
	b.next++
	id, c := b.next, make(chan answer, 1)
	b.answers[id] = c
	m := map[string]any{"id": id, "method": method, "params": params}
	if params == nil {
		m["params"] = map[string]any{}
	}
	if session != "" {
		m["sessionId"] = session
	}
	raw, err := json.Marshal(m)
	if err == nil {
		_, err = b.out.Write(append(raw, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case a := <-c:
		if a.err != "" {
			return nil, fmt.Errorf("%s: %s", method, a.err)
		}
		return a.result, nil
	case <-time.After(patience):
		return nil, fmt.Errorf("%s: no answer in %s", method, patience)
	}
}

func (b *chromium) must(session, method string, params map[string]any, into any) {
	b.t.Helper()
	raw, err := b.call(session, method, params)
	if err == nil && into != nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func (p *tab) must(method string, params map[string]any, into any) {
	p.b.t.Helper()
	p.b.must(p.session, method, params, into)
}

func (p *tab) size(width, height int) {
	p.b.t.Helper()
	p.must("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
}

func (p *tab) scheme(name string) {
	p.b.t.Helper()
	p.must("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]any{{"name": "prefers-color-scheme", "value": name}}}, nil)
}

// visit opens a URL and waits until the page is drawn.
func (p *tab) visit(at string) {
	p.b.t.Helper()
	var answer struct{ ErrorText string }
	p.must("Page.navigate", map[string]any{"url": at}, &answer)
	if answer.ErrorText != "" {
		p.b.t.Fatalf("%s: %s", at, answer.ErrorText)
	}
	p.until("document.documentElement?.dataset.ready !== undefined")
}

// visitFile opens a file.
func (p *tab) visitFile(path string) {
	p.b.t.Helper()
	p.visit((&url.URL{Scheme: "file", Path: path}).String())
}

// eval returns what an expression is in the page, as JSON.
func (p *tab) eval(expression string) string {
	p.b.t.Helper()
	var v struct {
		Result struct {
			Value json.RawMessage
		}
		ExceptionDetails json.RawMessage
	}
	p.must("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &v)
	if v.ExceptionDetails != nil {
		p.b.t.Fatalf("%s: %s", expression, v.ExceptionDetails)
	}
	return string(v.Result.Value)
}

// until waits until an expression is true.
func (p *tab) until(expression string) {
	p.b.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if p.eval("Boolean("+expression+")") == "true" {
			return
		}
	}
	p.b.t.Fatalf("%s did not come true; the console says %q", expression, p.said())
}

// key presses a key.
func (p *tab) key(name string) {
	p.b.t.Helper()
	m := map[string]any{"type": "keyDown", "key": name}
	if len(name) == 1 {
		m["text"] = name
	}
	p.must("Input.dispatchKeyEvent", m, nil)
	p.must("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": name}, nil)
}

func (p *tab) mouse(kind string, x, y float64, more map[string]any) {
	p.b.t.Helper()
	m := map[string]any{"type": kind, "x": x, "y": y}
	for k, v := range more {
		m[k] = v
	}
	p.must("Input.dispatchMouseEvent", m, nil)
}

func (p *tab) click(x, y float64) {
	p.b.t.Helper()
	left := map[string]any{"button": "left", "clickCount": 1}
	p.mouse("mousePressed", x, y, left)
	p.mouse("mouseReleased", x, y, left)
}

func (p *tab) said() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.problems
}

func (p *tab) asked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests
}

// picture writes what the page looks like to build/page/NAME.png, for a person.
func (p *tab) picture(name string) {
	p.b.t.Helper()
	p.eval("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
	var v struct{ Data string }
	p.must("Page.captureScreenshot", map[string]any{"format": "png"}, &v)
	b, err := base64.StdEncoding.DecodeString(v.Data)
	if err != nil {
		p.b.t.Fatal(err)
	}
	dir := filepath.Join("..", "..", "build", "page")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		p.b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), b, 0o600); err != nil {
		p.b.t.Fatal(err)
	}
	if len(b) < 5000 {
		p.b.t.Errorf("the picture %s is empty: %d bytes", name, len(b))
	}
}

// quiet fails if the page has asked for anything but itself, or has said anything.
func (p *tab) quiet(allowed ...string) {
	p.b.t.Helper()
	for _, s := range p.said() {
		p.b.t.Errorf("the console: %s", s)
	}
	for _, u := range p.asked() {
		ok := false
		for _, a := range allowed {
			ok = ok || strings.HasPrefix(u, a)
		}
		if !ok {
			p.b.t.Errorf("the page asked for %s", u)
		}
	}
}
