// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc/codes"

	"berth/internal/exit"
	"berth/internal/lane"
	"berth/internal/pod"
	"berth/internal/state"
	"berth/internal/timeline"
)

var goVersion = runtime.Version()

// observer turns what happens into log lines, the timeline and metrics.
type observer struct {
	log      *slog.Logger
	timeline *timeline.Timeline
	trips    *trips
	reg      *prometheus.Registry
	gone     func(id string) // called when a record was deleted; may be nil
	happened func(id string) // called when anything happened; may be nil
	absence  string          // why containerd was not there when last asked; of lost alone

	lag        *prometheus.HistogramVec
	attempts   *prometheus.CounterVec
	reconnects prometheus.Counter
	calls      *prometheus.HistogramVec
	repairs    *prometheus.CounterVec
	panics     *prometheus.CounterVec
	oomKills   prometheus.Counter
}

func newObserver(log *slog.Logger, t *timeline.Timeline, trips *trips) *observer {
	counter := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	o := &observer{
		log:      log,
		timeline: t,
		trips:    trips,
		reg:      prometheus.NewRegistry(),
		lag: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_exit_lag_seconds",
			Help:    "From the end of a process to its exit being durable and visible, by the witness whose code stands.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}, []string{"witness"}),
		attempts: counter("berth_lane_attempts_total", "Attempts to settle or release, by result.", "result"),
		reconnects: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_containerd_disconnects_total",
			Help: "Times that the event stream from containerd broke.",
		}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_cri_call_seconds",
			Help:    "CRI calls by method and code.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 3, 12),
		}, []string{"method", "code"}),
		repairs: counter("berth_audit_repairs_total", "What the audit found that no witness had reported, by what it was.", "what"),
		panics:  counter("berth_panics_total", "Panics that ended a call, by its method, or an attempt of a lane. The log has their stacks.", "where"),
		oomKills: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_oom_kills_survived_total",
			Help: "Processes that the OOM killer ended in containers that went on.",
		}),
	}
	o.reg.MustRegister(
		o.oomKills,
		o.lag,
		o.attempts,
		o.reconnects,
		o.calls,
		o.repairs,
		o.panics,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return o
}

// Event implements pod.Observer.
func (o *observer) Event(id, what string, err error, fields ...any) {
	o.timeline.Add(id, time.Now(), what, err, fields...)
	if o.happened != nil {
		o.happened(id)
	}
	args := append([]any{"id", id}, fields...)
	if err != nil {
		o.log.Warn(what, append(args, "err", err)...)
		return
	}
	o.log.Info(what, args...)
}

// Settled implements pod.Observer.
func (o *observer) Settled(id string, f exit.Fact, lag time.Duration) {
	o.trips.settled(id, string(f.Origin), lag)
	o.lag.WithLabelValues(string(f.Origin)).Observe(max(lag, 0).Seconds())
	o.Event(id, "settled", nil, "code", f.ExitCode(), "reason", f.Reason(), "witness", string(f.Origin))
}

// Survived implements pod.Observer.
func (o *observer) Survived(id string, kills uint64, limit exit.Limit) {
	o.oomKills.Add(float64(kills))
	o.Event(id, "the OOM killer fired in it, and it goes on", nil, "kills", kills, "because", limit.String())
}

// Released implements pod.Observer.
func (o *observer) Released(id string, gone, held state.Hold) {
	if gone.Has(state.HoldTask) {
		o.trips.released(id)
	}
	o.Event(id, "released", nil, "what", gone.String(), "holds", held.String())
}

// Removed implements pod.Observer.
func (o *observer) Removed(id string) {
	o.trips.released(id)
	o.Event(id, "removed", nil)
	if o.gone != nil {
		o.gone(id)
	}
}

// Repaired implements pod.Observer.
func (o *observer) Repaired(what pod.Repair) { o.repairs.WithLabelValues(string(what)).Inc() }

// Ended implements lane.Observer.
func (o *observer) Ended(key pod.LaneKey, n int, took time.Duration, r lane.Result) {
	o.trips.attempted(key.String(), n, took, r)
	o.attempts.WithLabelValues(r.String()).Inc()
	var p *lane.PanicError
	if errors.As(r.Err(), &p) {
		o.panics.WithLabelValues("lane").Inc()
		o.log.Error("lane attempt panicked", "id", key.String(), "attempt", n, "err", p, "stack", string(p.Stack))
	}
}

// lost is called when the connection to containerd broke, and after each attempt that did not bring
// it back: then was says that it was not there before.
func (o *observer) lost(err error, there bool) {
	if there {
		o.reconnects.Inc()
		o.absence = ""
		o.log.Warn("the connection to containerd is lost; connecting again", "err", err)
		return
	}
	level := slog.LevelDebug
	if why := err.Error(); why != o.absence {
		o.absence, level = why, slog.LevelWarn
	}
	o.log.Log(context.Background(), level, "containerd is not there yet; trying again", "err", err)
}

// Called implements cri.Observer.
func (o *observer) Called(method string, took time.Duration, code codes.Code) {
	o.calls.WithLabelValues(method, code.String()).Observe(took.Seconds())
}

// Panicked implements cri.Observer.
func (o *observer) Panicked(method string) { o.panics.WithLabelValues(method).Inc() }

// gauges are metrics that are read when they are scraped.
func gauges(d *daemon) []prometheus.Collector {
	gauge := func(name, help string, read func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read)
	}
	counter := func(name, help string, read func() uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(read()) })
	}
	pods, feed := d.core.Pods, d.core.Feed
	return []prometheus.Collector{
		budgets(d.streams.Budgets()),
		counter("berth_log_dropped_total", "Records of berth's log that were dropped because standard error was not read.", d.log.Dropped),
		counter("berth_trace_spans_dropped_total", "Spans that were dropped because the collector did not take them.", d.spans.lost),
		gauge("berth_lanes_waiting", "Lanes that are not idle.",
			func() float64 { return float64(len(pods.Lanes())) }),
		gauge("berth_oldest_unsettled_exit_seconds", "Age of the oldest exit that was reported and is not settled.",
			func() float64 { return pods.Oldest(pod.StepSettle).Seconds() }),
		gauge("berth_oldest_unreleased_seconds", "Age of the oldest settled exit that still holds something.",
			func() float64 { return pods.Oldest(pod.StepRelease).Seconds() }),
		gauge("berth_feed_queued", "Events that wait for subscribers.",
			func() float64 { return float64(feed.Stats().Queued) }),
		gauge("berth_feed_coalesced", "Events that were coalesced because a subscriber did not read.",
			func() float64 { return float64(feed.Stats().Coalesced) }),
		gauge("berth_feed_subscribers", "Subscribers of container events.",
			func() float64 { return float64(feed.Stats().Subscribers) }),
	}
}
