// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/images/policy"
)

func newDecisions() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_image_policy_decisions_total",
		Help: "Decisions on images by the policy of this node.",
	}, []string{"at", "rule", "decision"})
}

// Decided counts a decision on an image.
func (m *Metrics) Decided(d policy.Decided) {
	m.decisions.WithLabelValues(d.At, d.Rule, d.Outcome).Inc()
}

// ReadPolicy adds the metric that is read from the policy.
func (m *Metrics) ReadPolicy(g *policy.Guard) { m.reg.MustRegister(policyMetrics{g}) }

// policyMetrics says whether the policy can be used.
type policyMetrics struct{ g *policy.Guard }

var policyDesc = prometheus.NewDesc("berth_image_policy_usable", "1 if the rules of image.policy_file can be used, else 0. Absent where none is configured.", nil, nil)

// Describe implements prometheus.Collector.
func (policyMetrics) Describe(to chan<- *prometheus.Desc) { to <- policyDesc }

// Collect implements prometheus.Collector.
func (c policyMetrics) Collect(to chan<- prometheus.Metric) {
	configured, err := c.g.Broken()
	if !configured {
		return
	}
	usable := 1.0
	if err != nil {
		usable = 0
	}
	to <- prometheus.MustNewConstMetric(policyDesc, prometheus.GaugeValue, usable)
}
