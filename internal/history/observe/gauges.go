// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/base/budget"
	"berth/internal/base/ops"
	"berth/internal/heart/feed"
	"berth/internal/heart/pod"
)

// Sources are what metrics are read from when they are scraped.
type Sources struct {
	Pods    *pod.Controller
	Ops     *ops.List
	Feed    *feed.Feed
	Budgets []*budget.Budget
	// LogDropped counts the records of berth's log that were dropped.
	LogDropped func() uint64
	// Tracing may be nil: no span was dropped.
	Tracing *Tracing
}

// Read adds the metrics that are read from s.
func (m *Metrics) Read(s Sources) {
	gauge := func(name, help string, read func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read)
	}
	counter := func(name, help string, read func() uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(read()) })
	}
	m.reg.MustRegister(
		budgets(s.Budgets),
		underWay{s.Ops},
		counter("berth_log_dropped_total", "Records of berth's log that were dropped because standard error was not read.", s.LogDropped),
		counter("berth_trace_spans_dropped_total", "Spans that were dropped because the collector did not take them.", s.Tracing.dropped),
		gauge("berth_lanes_waiting", "Lanes that are not idle.",
			func() float64 { return float64(len(s.Pods.Lanes())) }),
		gauge("berth_oldest_unsettled_exit_seconds", "Age of the oldest exit that was reported and is not settled.",
			func() float64 { return s.Pods.Oldest(pod.StepSettle).Seconds() }),
		gauge("berth_oldest_unreleased_seconds", "Age of the oldest settled exit that still holds something.",
			func() float64 { return s.Pods.Oldest(pod.StepRelease).Seconds() }),
		gauge("berth_feed_queued", "Events that wait for subscribers.",
			func() float64 { return float64(s.Feed.Stats().Queued) }),
		gauge("berth_feed_coalesced", "Events that were coalesced because a subscriber did not read.",
			func() float64 { return float64(s.Feed.Stats().Coalesced) }),
		gauge("berth_feed_subscribers", "Subscribers of container events.",
			func() float64 { return float64(s.Feed.Stats().Subscribers) }),
	)
}

// underWay collects metrics of what is under way.
type underWay struct{ list *ops.List }

var (
	underWayCount  = prometheus.NewDesc("berth_operations", "Operations under way, with their parts.", []string{"kind"}, nil)
	underWayOldest = prometheus.NewDesc("berth_operations_oldest_seconds", "Age of the oldest operation under way.", []string{"kind"}, nil)
)

// Describe implements prometheus.Collector.
func (underWay) Describe(to chan<- *prometheus.Desc) {
	to <- underWayCount
	to <- underWayOldest
}

// Collect implements prometheus.Collector.
func (u underWay) Collect(to chan<- prometheus.Metric) {
	list, _ := u.list.Snapshot()
	count, oldest := map[ops.Kind]float64{}, map[ops.Kind]float64{}
	for _, o := range list {
		count[o.Kind]++
		oldest[o.Kind] = max(oldest[o.Kind], o.Age().Seconds())
	}
	for kind, n := range count {
		to <- prometheus.MustNewConstMetric(underWayCount, prometheus.GaugeValue, n, string(kind))
		to <- prometheus.MustNewConstMetric(underWayOldest, prometheus.GaugeValue, oldest[kind], string(kind))
	}
}

// budgets collects metrics of what all pods share.
type budgets []*budget.Budget

var (
	budgetUsed    = prometheus.NewDesc("berth_budget_used", "How much of what all pods share is used.", []string{"what"}, nil)
	budgetLimit   = prometheus.NewDesc("berth_budget_limit", "How much there is of what all pods share.", []string{"what"}, nil)
	budgetRefused = prometheus.NewDesc("berth_budget_refused_total", "How often a pod was refused what all pods share.", []string{"what"}, nil)
)

// Describe implements prometheus.Collector.
func (budgets) Describe(to chan<- *prometheus.Desc) {
	to <- budgetUsed
	to <- budgetLimit
	to <- budgetRefused
}

// Collect implements prometheus.Collector.
func (all budgets) Collect(to chan<- prometheus.Metric) {
	for _, b := range all {
		u := b.Usage()
		to <- prometheus.MustNewConstMetric(budgetUsed, prometheus.GaugeValue, float64(u.Used), u.Name)
		to <- prometheus.MustNewConstMetric(budgetLimit, prometheus.GaugeValue, float64(u.Node), u.Name)
		to <- prometheus.MustNewConstMetric(budgetRefused, prometheus.CounterValue, float64(u.Refused), u.Name)
	}
}
