// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/lane"
	"berth/internal/heart/pod"
	"berth/internal/history/journal"
	"berth/internal/history/recorder"
)

// Config says where an observer passes on what happens.
type Config struct {
	// Clock makes the instants of events; nil: that of this process.
	Clock    *clock.Clock
	Log      *slog.Logger
	Recorder *recorder.Recorder
	Metrics  *Metrics
	// Tracing may be nil: nothing is traced.
	Tracing *Tracing
	// Removed is called with the ID whose record was deleted, and Happened with the ID that anything
	// happened to, "" for the node. They must not block, and may be nil.
	Removed  func(id string)
	Happened func(id string)
}

// Observer turns events into log lines, the timeline, metrics and traces, which happens nowhere
// else. It implements pod.Observer and lane.Observer.
type Observer struct {
	cfg     Config
	metrics *Metrics
	trips   *trips
	absence string // why containerd was not there when last asked; of Lost alone
	names   names
}

// New makes an observer.
func New(cfg Config) *Observer {
	if cfg.Clock == nil {
		cfg.Clock = clock.New(nil)
	}
	return &Observer{cfg: cfg, metrics: cfg.Metrics, trips: newTrips(cfg.Tracing.tracer(), cfg.Clock)}
}

// Note implements pod.Observer. id is "" for an event of the node.
func (o *Observer) Note(id string, e event.Event) {
	n := event.Entry{At: o.cfg.Clock.Now(), ID: id, Event: e}
	line := n.Shown(o.cfg.Clock).Line()
	o.cfg.Recorder.Add(n)
	o.print(o.names.noted(id, e), id, line, event.Kind(e))
	o.metrics.noted(e)
	o.trips.noted(n, line)
	if o.cfg.Happened != nil {
		o.cfg.Happened(id)
	}
	if _, ok := e.(event.Removed); ok && o.cfg.Removed != nil {
		o.cfg.Removed(id)
	}
}

// print writes an event to the log.
func (o *Observer) print(of event.Names, id string, l event.Line, kind string) {
	attrs := make([]slog.Attr, 0, len(l.Attrs)+2)
	if id != "" {
		attrs = append(attrs, slog.String("id", id))
	}
	attrs = append(attrs, l.Attrs...)
	if l.Err != "" {
		attrs = append(attrs, slog.String("err", l.Err))
	}
	ctx := journal.With(context.Background(), journal.Fields{
		Event:     kind,
		Namespace: of.Namespace,
		Pod:       of.Pod,
		UID:       of.UID,
		Container: of.Container,
		ID:        id,
	})
	o.cfg.Log.LogAttrs(ctx, l.Level, l.Message, attrs...)
}

// Ended implements lane.Observer.
func (o *Observer) Ended(key pod.LaneKey, n int, took time.Duration, r lane.Result) {
	o.trips.attempted(key.String(), n, took, r)
	o.metrics.attempts.WithLabelValues(r.String()).Inc()
	var p *lane.PanicError
	if errors.As(r.Err(), &p) {
		o.Note(key.ID, event.AttemptPanicked{
			Lane:    string(key.Purpose),
			Attempt: n,
			Err:     p.Error(),
			Stack:   string(p.Stack),
		})
	}
}

// Lost reports that the connection to containerd broke, and each attempt after that which did not
// bring it back: then there is false. A reason that repeats itself is an event once.
func (o *Observer) Lost(err error, there bool) {
	why := err.Error()
	absent := event.ContainerdAbsent{Err: why}
	switch {
	case there:
		o.absence = ""
		o.Note("", event.ContainerdLost{Err: why})
	case why != o.absence:
		o.absence = why
		o.Note("", absent)
	default:
		line := event.Describe(absent)
		line.Level = slog.LevelDebug
		o.print(event.Names{}, "", line, event.Kind(absent))
	}
}
