// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/browser"
	"berth/tools/page"
)

// withHistory is a service on which something has happened.
func withHistory() *fake {
	f := newFake()
	s := &browser.Story{}
	at := time.Now().Add(-time.Hour)
	p := s.Pod(at, "default", "web", "")
	c := p.Start(at.Add(time.Minute), "app")
	e := browser.OOM(at.Add(2 * time.Minute))
	c.End(e)
	c.Crash(e, e, 1, "the last line")
	f.records = s.Records()
	f.addPod(p.ID, "default", "web")
	f.lanes[0].Id = c.ID
	f.stats = []*runtimeapi.ContainerStats{}
	return f
}

func (f *fake) report(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := New(Daemon{})
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(append([]string{"--endpoint", serveFake(t, f)}, args...))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// A report is a file of its owner's alone, all of it or nothing, and takes no other file's place.
func TestAReportIsAFile(t *testing.T) {
	f := withHistory()
	path := filepath.Join(t.TempDir(), "r.html")
	if _, err := f.report(t, "report", path); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("%v %v", info.Mode(), err)
	}
	b, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(b), "default/web") || !strings.Contains(string(b), "the last line") {
		t.Errorf("%v: %d bytes", err, len(b))
	}
	if _, err := f.report(t, "report", path); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("over a file that is there: %v", err)
	}
	if _, err := f.report(t, "report", path, "--force"); err != nil {
		t.Error(err)
	}
	if _, err := f.report(t, "report", filepath.Join(path, "below")); err == nil {
		t.Error("a file below a file is no error")
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("%v %v", left, err)
	}
	for _, args := range [][]string{{"report"}, {"report", "a", "b"}, {"report", path, "-o", "yaml"}, {"report", path, "--since", "-1h"}} {
		if _, err := f.report(t, args...); err == nil {
			t.Errorf("%v is no error", args)
		}
	}
}

// A file that came meanwhile is not written over.
func TestAReportTakesNoOthersPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.html")
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeWhole(path, []byte("report"), false); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	if b, _ := os.ReadFile(path); string(b) != "mine" {
		t.Errorf("%q", b)
	}
}

func TestAReportGoesToTheStandardOutput(t *testing.T) {
	out, err := withHistory().report(t, "report", "-")
	if err != nil || !strings.HasPrefix(out, "<!doctype html>") || !strings.Contains(out, "the last line") {
		t.Errorf("%v: %.100s", err, out)
	}
}

// Everything that the page shows is JSON, too.
func TestAReportIsJSON(t *testing.T) {
	out, err := withHistory().report(t, "report", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var m page.Model
	if err := json.Unmarshal([]byte(out), &m); err != nil {
		t.Fatal(err)
	}
	if len(m.Rows) != 1 || m.Rows[0].Counts[page.ExitOOM] != 1 || len(m.Rows[0].Crashes) != 1 || len(m.Rows[0].Lines) < 5 {
		t.Errorf("%+v", m.Rows)
	}
	if m.Live == nil || len(m.Live.Held) != 1 || m.Live.Held[0].Row != "default/web" || m.Live.Held[0].Container != "app" || !strings.Contains(m.Live.Held[0].Text, "attempt 3 has failed") {
		t.Errorf("%+v", m.Live)
	}
	if len(m.Live.Conditions) != 2 || m.Live.Conditions[1].Ready || m.Live.Warnings[0] != "runc is old" {
		t.Errorf("%+v", m.Live)
	}
}

// The page is served where nobody on another machine can ask for it.
func TestTheUIListensLocallyAlone(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:80", "localhost:0", "example.com:80", "127.0.0.1", "unix://relative", ""} {
		if l, _, err := listenLocally(t.Context(), address); err == nil {
			_ = l.Close()
			t.Errorf("it listens on %q", address)
		}
	}
	path := filepath.Join(t.TempDir(), "ui.sock")
	l, url, err := listenLocally(t.Context(), "unix://"+path)
	if err != nil || url != "http://localhost" {
		t.Fatal(url, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if c, err := net.Dial("unix", path); err != nil {
		t.Error(err)
	} else {
		_ = c.Close()
	}
	if _, _, err := listenLocally(t.Context(), "unix://"+path); err == nil {
		t.Error("it takes the place of another socket")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
		t.Errorf("%v %v", left, err)
	}
}

// berth ui prints a URL that has the page, and ends when it is told to.
func TestTheUIServesThePage(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	cmd := New(Daemon{})
	cmd.SetOut(w)
	cmd.SetErr(io.Discard)
	cmd.SetArgs([]string{"--endpoint", serveFake(t, withHistory()), "ui"})
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.ExecuteContext(ctx)
		_ = w.Close()
	}()
	buf := make([]byte, 512)
	n, err := r.Read(buf)
	if err != nil {
		t.Fatal(err, <-ended)
	}
	url := strings.TrimSpace(string(buf[:n]))
	if !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Fatal(url)
	}
	get := func(url string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	if code, body := get(url); code != http.StatusOK || !strings.Contains(body, "default/web") {
		t.Errorf("%d %.200s", code, body)
	}
	if code, body := get(strings.Replace(url, "/?", "/data.json?after=0&", 1)); code != http.StatusOK || !strings.Contains(body, "default/web") {
		t.Errorf("%d %.200s", code, body)
	}
	base, _, _ := strings.Cut(url, "?")
	if code, body := get(base); code != http.StatusForbidden || strings.Contains(body, "web") {
		t.Errorf("without the token: %d %.200s", code, body)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
