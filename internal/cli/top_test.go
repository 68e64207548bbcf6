// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"net"
	"path/filepath"
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
	p.screen.until(t, "by CPU", "nginx")
	if first := strings.Index(p.screen.String(), "nginx"); first > strings.Index(p.screen.String(), "cache") {
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
	if strings.Index(after, "nginx") < strings.Index(after, "cache") {
		t.Errorf("it is not sorted by memory: %q", after)
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
	var list []containerUsage
	for i := range 100 {
		list = append(list, containerUsage{pod: "größer/p", stats: &runtimeapi.ContainerStats{Attributes: &runtimeapi.ContainerAttributes{Id: fmt.Sprint(i)}}})
	}
	for _, s := range []screenSize{{80, 24}, {20, 5}, {1, 1}, {500, 300}, {0, 0}} {
		shown := strings.TrimSuffix(strings.TrimPrefix(draw(list, nil, "CPU", s), homeCursor), clearRest)
		rows := strings.Split(shown, "\r\n")
		if len(rows) > max(s.height, 1) {
			t.Errorf("%v: %d lines", s, len(rows))
		}
		for _, l := range rows {
			if n := utf8.RuneCountInString(strings.TrimSuffix(l, clearLine)); n > s.width {
				t.Errorf("%v: a line is %d wide", s, n)
			}
		}
	}
}
