// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/history/recorder"
)

// BenchmarkNote measures what an event costs whoever makes it.
func BenchmarkNote(b *testing.B) {
	o := New(Config{
		Log:      slog.New(slog.NewTextHandler(io.Discard, nil)),
		Recorder: recorder.Open(recorder.Config{}),
		Metrics:  NewMetrics(),
	})
	ids := make([]string, 1000)
	for i := range ids {
		ids[i] = fmt.Sprintf("%064x", i)
	}
	f := exit.Fact{Code: 42, Measured: true, Origin: exit.Kernel, At: clock.Stamped(time.Now())}
	i := 0
	for b.Loop() {
		i++
		o.Note(ids[i%len(ids)], event.ExitSettled{Exit: event.ExitOf(f), Lag: time.Millisecond})
	}
}
