// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/codes"

	"berth/internal/base/event"
	"berth/internal/images/durable"
)

// Metrics counts what happens. It implements cri.Observer. docs/metrics.md has each metric.
type Metrics struct {
	reg *prometheus.Registry

	lag        *prometheus.HistogramVec
	attempts   *prometheus.CounterVec
	reconnects prometheus.Counter
	calls      *prometheus.HistogramVec
	repairs    *prometheus.CounterVec
	panics     *prometheus.CounterVec
	durability *prometheus.CounterVec
	oomKills   prometheus.Counter
	accesses   *prometheus.CounterVec
	execs      *prometheus.CounterVec
	pulls      pulls
	decisions  *prometheus.CounterVec
	peers      peers
	exits      *prometheus.CounterVec
	plugins    plugins
}

// NewMetrics makes metrics that are all zero.
func NewMetrics() *Metrics {
	counter := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	m := &Metrics{
		reg: prometheus.NewRegistry(),
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
		durability: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_layers_checked_total",
			Help: "Layers and blobs of images that were checked after an unclean boot, or repaired, by what came of it: whole, repaired, removed; or unsynced: not put onto the disk.",
		}, []string{"kind", "outcome"}),
		oomKills: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_oom_kills_survived_total",
			Help: "Processes that the OOM killer ended in containers that went on.",
		}),
		accesses: counter("berth_accesses_total", "Commands and connections of clients that began, by what they are; probe for what the kubelet runs in a container with a timeout.", "what"),
		execs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_execs_total",
			Help: "Processes of ExecSync by who made them, helper or oci, and why it was not the helper.",
		}, []string{"way", "why"}),
		pulls:     newPulls(),
		decisions: newDecisions(),
		peers:     newPeers(),
		exits:     counter("berth_exits_total", "Ends of containers and sandboxes, by the reason that CRI has.", "reason"),
		plugins:   newPlugins(),
	}
	m.reg.MustRegister(
		m.oomKills,
		m.exits,
		m.plugins.seconds,
		m.accesses,
		m.execs,
		m.pulls.seconds,
		m.pulls.bytes,
		m.decisions,
		m.peers.received,
		m.peers.sent,
		m.peers.answers,
		m.peers.failures,
		m.lag,
		m.attempts,
		m.reconnects,
		m.calls,
		m.repairs,
		m.panics,
		m.durability,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// noted counts an event.
func (m *Metrics) noted(e event.Event) {
	switch e := e.(type) {
	case event.ExitSettled:
		m.lag.WithLabelValues(string(e.Witness)).Observe(max(e.Lag, 0).Seconds())
		m.exits.WithLabelValues(e.Reason).Inc()
	case event.OOMKillSurvived:
		m.oomKills.Add(float64(e.Kills))
	case event.AccessBegan:
		m.accesses.WithLabelValues(e.Access).Inc()
	case event.ExitFound:
		m.repairs.WithLabelValues("exit").Inc()
	case event.OrphanRemoved, event.LateTask:
		m.repairs.WithLabelValues("orphan").Inc()
	case event.AttemptPanicked:
		m.Panicked("lane")
	case event.ContainerdLost:
		m.reconnects.Inc()
	}
}

// Called implements cri.Observer.
func (m *Metrics) Called(method string, took time.Duration, code codes.Code) {
	m.calls.WithLabelValues(method, code.String()).Observe(took.Seconds())
}

// Panicked counts a panic that berth has survived. It implements cri.Observer.
func (m *Metrics) Panicked(where string) { m.panics.WithLabelValues(where).Inc() }

// Probed counts a command that the kubelet runs in a container and waits for.
func (m *Metrics) Probed() { m.accesses.WithLabelValues("probe").Inc() }

// Executed counts a process of ExecSync by who made it: helper, or oci and why.
func (m *Metrics) Executed(way, why string) { m.execs.WithLabelValues(way, why).Inc() }

// DurabilityChecked counts what the check of a layer or a blob has come to.
func (m *Metrics) DurabilityChecked(i durable.Item, o durable.Outcome) {
	m.durability.WithLabelValues(string(i.Kind), string(o)).Inc()
}

const (
	maxScrapes    = 4
	scrapeTimeout = 10 * time.Second
)

// Serve serves /metrics at address until ctx ends, and returns nil then. It returns an error if the
// address cannot be used.
func (m *Metrics) Serve(ctx context.Context, address string, log *slog.Logger) error {
	lis, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	s := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: scrapeTimeout,
		WriteTimeout:      scrapeTimeout,
		IdleTimeout:       time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(stopped); _ = s.Close() })
	defer func() {
		if !stop() {
			<-stopped
		}
	}()
	log.Info("metrics are served", "address", lis.Addr().String())
	if err := s.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
