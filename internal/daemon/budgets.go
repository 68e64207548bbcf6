// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/budget"
)

// budgets are metrics of what all pods share.
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
