// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
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
