// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// collector is an OTLP collector that keeps the spans of berth's own.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	address string
	server  *grpc.Server

	mu    sync.Mutex
	spans []activity
}

func newCollector() (*collector, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for traces: %w", err)
	}
	c := &collector{address: l.Addr().String(), server: grpc.NewServer()}
	collectorpb.RegisterTraceServiceServer(c.server, c)
	go func() { _ = c.server.Serve(l) }() // until stop
	return c, nil
}

// stop takes what is being sent, and no more. It may be called twice.
func (c *collector) stop() { c.server.GracefulStop() }

func (c *collector) all() []activity {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spans
}

// Export implements the collector's service. It leaves out the spans of gRPC, which are the calls
// themselves and the questions of the bench.
func (c *collector) Export(_ context.Context, r *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			if scope.GetScope().GetName() != "berth" {
				continue
			}
			for _, s := range scope.GetSpans() {
				a := activity{
					what:  s.GetName(),
					kind:  spanBar,
					began: time.Unix(0, int64(s.GetStartTimeUnixNano())), //nolint:gosec // an instant
					end:   time.Unix(0, int64(s.GetEndTimeUnixNano())),   //nolint:gosec // likewise
				}
				if a.what == "commit" {
					a.kind = commitBar
				}
				for _, at := range s.GetAttributes() {
					if at.GetKey() == "berth.id" {
						a.id = at.GetValue().GetStringValue()
					}
				}
				c.spans = append(c.spans, a)
			}
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// programs are the processes that ran programs of the build directory, from the kernel's process
// events: what shims, runc and CNI plug-ins do is in no span.
type programs struct {
	dirs  []string // of the programs, without links
	epoch time.Time
	done  chan struct{}
	once  sync.Once

	mu      sync.Mutex
	running map[uint32]activity // by process
	ended   []activity
}

// watchPrograms begins to watch. Where the kernel has no process events, there are no programs.
func watchPrograms(build string) *programs {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // that of the events
	w := &programs{epoch: time.Now().Add(-time.Duration(now.Nano())), done: make(chan struct{}), running: map[uint32]activity{}}
	for _, sub := range []string{"libexec", "cni"} {
		if dir, err := filepath.EvalSymlinks(filepath.Join(build, sub)); err == nil {
			w.dirs = append(w.dirs, dir)
		}
	}
	events, failed := make(chan netlink.ProcEvent, 1000), make(chan error, 1)
	if err := netlink.ProcEventMonitor(events, w.done, failed); err != nil {
		return w
	}
	go func() { // until stop
		for e := range events {
			w.take(e)
		}
	}()
	return w
}

func (w *programs) stop() { w.once.Do(func() { close(w.done) }) }

func (w *programs) all() []activity {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}

func (w *programs) take(e netlink.ProcEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.epoch.Add(time.Duration(e.Timestamp)) //nolint:gosec // nanoseconds since boot
	switch m := e.Msg.(type) {
	case *netlink.ExecProcEvent:
		w.end(m.ProcessTgid, at) // runc's init becomes the user's program
		if what := w.program(m.ProcessTgid); what != "" {
			w.running[m.ProcessTgid] = activity{what: what, kind: programBar, began: at}
		}
	case *netlink.ExitProcEvent:
		if m.ProcessPid == m.ProcessTgid {
			w.end(m.ProcessTgid, at)
		}
	}
}

func (w *programs) end(pid uint32, at time.Time) {
	if a, ok := w.running[pid]; ok {
		a.end = at
		w.ended = append(w.ended, a)
		delete(w.running, pid)
	}
}

// program names what a process runs: the program and what it is to do. It is empty for a program
// that is neither of the build directory nor runc's copy of itself, and for one that ended at once.
func (w *programs) program(pid uint32) string {
	proc := "/proc/" + strconv.FormatUint(uint64(pid), 10)
	exe, _ := os.Readlink(proc + "/exe")
	line, _ := os.ReadFile(proc + "/cmdline")
	args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
	ours := strings.HasPrefix(exe, "/memfd:runc") || filepath.Base(args[0]) == "runc"
	for _, d := range w.dirs {
		ours = ours || strings.HasPrefix(exe, d+"/")
	}
	if !ours {
		return ""
	}
	name := filepath.Base(args[0])
	env, _ := os.ReadFile(proc + "/environ")
	for v := range strings.SplitSeq(string(env), "\x00") {
		if verb, ok := strings.CutPrefix(v, "CNI_COMMAND="); ok {
			return "CNI " + name + " " + verb
		}
	}
	for _, a := range args[1:] {
		switch a {
		case "create", "start", "delete", "init", "kill", "state", "update":
			return name + " " + a
		}
	}
	return name
}
