// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/base/ops"
)

// PROPERTIES 17: a port that somebody else has is an error that persist repeats, and once it is
// free, metrics are served.
func TestMetricsAreServedOnceTheirPortIsFree(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, log := busy.Addr().String(), slog.New(slog.DiscardHandler)
	m := NewMetrics()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := m.Serve(ctx, address, log); err == nil || !strings.Contains(err.Error(), address) {
		t.Fatalf("the port is busy: got %v", err)
	}
	if err := busy.Close(); err != nil {
		t.Fatal(err)
	}
	m.Panicked("StopContainer")
	done := make(chan error)
	go func() { done <- m.Serve(ctx, address, log) }()
	var body string
	for deadline := time.Now().Add(10 * time.Second); body == "" && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		resp, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			continue // not there yet
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		body = string(b)
	}
	if want := `berth_panics_total{where="StopContainer"} 1`; !strings.Contains(body, want) {
		t.Errorf("no %s in\n%s", want, body)
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A state in which nothing is has the value 0, so that an alert on it does not wait for the first,
// and the labels of plug-ins are bounded.
func TestTheNodeIsMeasured(t *testing.T) {
	m := NewMetrics()
	m.ReadNode(Node{
		Pods: func() []*runtimeapi.PodSandbox {
			return []*runtimeapi.PodSandbox{{}, {State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY}}
		},
		Containers: func() []*runtimeapi.Container {
			return []*runtimeapi.Container{{State: runtimeapi.ContainerState_CONTAINER_RUNNING}}
		},
		Ready: map[string]func() error{"runtime": func() error { return nil }, "network": func() error { return errors.New("no CNI") }},
		Space: func(dir string) (uint64, uint64) {
			if dir == "/silent" {
				return 0, 0
			}
			return 100, 7
		},
		Dirs: map[string]string{"root": "/root", "state": "/silent"},
	})
	m.noted(event.ExitSettled{Exit: event.Exit{Reason: "OOMKilled"}})
	m.Ended(ops.Operation{Work: ops.Work{Kind: ops.Wait, What: "the network (CNI ADD)"}}, time.Second)
	m.Ended(ops.Operation{Work: ops.Work{Kind: ops.Shim, What: "the shim (Kill)"}}, time.Second)
	for i := range 2 * mostPlugins {
		m.Ended(ops.Operation{Work: ops.Work{Kind: ops.Plugin, What: fmt.Sprint("plug-in ", i)}}, time.Second)
	}
	all, err := m.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got, plugins := map[string]float64{}, 0
	for _, f := range all {
		for _, s := range f.GetMetric() {
			name := f.GetName()
			for _, l := range s.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = s.GetGauge().GetValue() + s.GetCounter().GetValue()
			if f.GetName() == "berth_plugin_call_seconds" {
				plugins++
			}
		}
	}
	for name, want := range map[string]float64{
		"berth_pods READY":                 1,
		"berth_pods NOTREADY":              1,
		"berth_containers RUNNING":         1,
		"berth_containers EXITED":          0,
		"berth_ready runtime":              1,
		"berth_ready network":              0,
		"berth_filesystem_free_bytes root": 7,
		"berth_exits_total OOMKilled":      1,
	} {
		if v, there := got[name]; !there || v != want {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
	}
	if _, there := got["berth_filesystem_free_bytes state"]; there || plugins != mostPlugins+1 {
		t.Errorf("a silent disk has a size, or %d calls of plug-ins have a label", plugins)
	}
}
