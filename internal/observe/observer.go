// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"berth/internal/exit"
	"berth/internal/lane"
	"berth/internal/pod"
	"berth/internal/state"
	"berth/internal/timeline"
)

// Config says where an observer passes on what happens.
type Config struct {
	Log      *slog.Logger
	Timeline *timeline.Timeline
	Metrics  *Metrics
	// Tracing may be nil: nothing is traced.
	Tracing *Tracing
	// Removed is called with the ID whose record was deleted, and Happened with the ID that anything
	// happened to. They must not block, and may be nil.
	Removed  func(id string)
	Happened func(id string)
}

// Observer turns what happens into log lines, the timeline, metrics and traces. It implements
// pod.Observer and lane.Observer.
type Observer struct {
	cfg     Config
	metrics *Metrics
	trips   *trips
	absence string // why containerd was not there when last asked; of Lost alone
}

// New makes an observer.
func New(cfg Config) *Observer {
	return &Observer{cfg: cfg, metrics: cfg.Metrics, trips: newTrips(cfg.Tracing.tracer())}
}

// Event implements pod.Observer.
func (o *Observer) Event(id, what string, err error, fields ...any) {
	o.cfg.Timeline.Add(id, time.Now(), what, err, fields...)
	if o.cfg.Happened != nil {
		o.cfg.Happened(id)
	}
	args := append([]any{"id", id}, fields...)
	if err != nil {
		o.cfg.Log.Warn(what, append(args, "err", err)...)
		return
	}
	o.cfg.Log.Info(what, args...)
}

// Settled implements pod.Observer.
func (o *Observer) Settled(id string, f exit.Fact, lag time.Duration) {
	o.trips.settled(id, string(f.Origin), lag)
	o.metrics.lag.WithLabelValues(string(f.Origin)).Observe(max(lag, 0).Seconds())
	o.Event(id, "settled", nil, "code", f.ExitCode(), "reason", f.Reason(), "witness", string(f.Origin))
}

// Survived implements pod.Observer.
func (o *Observer) Survived(id string, kills uint64, limit exit.Limit) {
	o.metrics.oomKills.Add(float64(kills))
	o.Event(id, "the OOM killer fired in it, and it goes on", nil, "kills", kills, "because", limit.String())
}

// Released implements pod.Observer.
func (o *Observer) Released(id string, gone, held state.Hold) {
	if gone.Has(state.HoldTask) {
		o.trips.released(id)
	}
	o.Event(id, "released", nil, "what", gone.String(), "holds", held.String())
}

// Removed implements pod.Observer.
func (o *Observer) Removed(id string) {
	o.trips.released(id)
	o.Event(id, "removed", nil)
	if o.cfg.Removed != nil {
		o.cfg.Removed(id)
	}
}

// Repaired implements pod.Observer.
func (o *Observer) Repaired(what pod.Repair) { o.metrics.repairs.WithLabelValues(string(what)).Inc() }

// Ended implements lane.Observer.
func (o *Observer) Ended(key pod.LaneKey, n int, took time.Duration, r lane.Result) {
	o.trips.attempted(key.String(), n, took, r)
	o.metrics.attempts.WithLabelValues(r.String()).Inc()
	var p *lane.PanicError
	if errors.As(r.Err(), &p) {
		o.metrics.Panicked("lane")
		o.cfg.Log.Error("lane attempt panicked", "id", key.String(), "attempt", n, "err", p, "stack", string(p.Stack))
	}
}

// Lost reports that the connection to containerd broke, and each attempt after that which did not
// bring it back: then there is false. A reason that repeats itself is logged once.
func (o *Observer) Lost(err error, there bool) {
	if there {
		o.metrics.reconnects.Inc()
		o.absence = ""
		o.cfg.Log.Warn("the connection to containerd is lost; connecting again", "err", err)
		return
	}
	level := slog.LevelDebug
	if why := err.Error(); why != o.absence {
		o.absence, level = why, slog.LevelWarn
	}
	o.cfg.Log.Log(context.Background(), level, "containerd is not there yet; trying again", "err", err)
}
