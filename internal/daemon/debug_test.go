// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/base/asynclog"
	"berth/internal/base/lane"
)

// A berth that was slow could only be asked by a signal that ended it.
func TestARunningBerthCanBeAskedForItsStacks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "debug.sock")
	s := &sockets{log: &asynclog.Log{Logger: slog.New(slog.DiscardHandler)}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- serveDebug(ctx, s, path, func() []lane.Lane { return []lane.Lane{{ID: "c1"}} })
	}()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	for {
		c, err := dial(t.Context(), "", "")
		if err == nil {
			_ = c.Close()
			break
		}
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(time.Millisecond):
		}
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != os.ModeSocket|socketMode {
		t.Errorf("the mode is %v: %v", st, err)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial}}
	for ask, want := range map[string]string{
		"goroutines":    "TestARunningBerthCanBeAskedForItsStacks",
		"lanes":         `"c1"`,
		"heap":          "\x1f\x8b", // gzip, as pprof reads it
		"cpu?seconds=1": "\x1f\x8b",
		"cpu?seconds=0": "from 1 to 60",
	} {
		resp, err := client.Get("http://berth/" + ask)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %v, %.200q", ask, err, b)
		}
	}
	client.CloseIdleConnections()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket is left")
	}
}
