// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/images/image"
)

// pulls counts pulls of images.
type pulls struct {
	seconds *prometheus.HistogramVec
	bytes   prometheus.Counter
}

func newPulls() pulls {
	return pulls{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_image_pull_seconds",
			Help:    "Duration of pulls of images, by how they ended.",
			Buckets: prometheus.ExponentialBuckets(0.1, 2, 14),
		}, []string{"result"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_image_pull_bytes_total",
			Help: "Bytes that registries and peers sent for pulls of images.",
		}),
	}
}

// Pulled counts a pull that has ended.
func (m *Metrics) Pulled(p image.Pulled) {
	m.pulls.seconds.WithLabelValues(image.Kind(p.Err)).Observe(p.Took.Seconds())
	m.pulls.bytes.Add(float64(p.Bytes))
}

// ReadImages adds the metrics that are read from the image service.
func (m *Metrics) ReadImages(s *image.Service) { m.reg.MustRegister(imageMetrics{s}) }

// imageMetrics collects metrics of images.
type imageMetrics struct{ s *image.Service }

var (
	transfersDesc = prometheus.NewDesc("berth_image_transfers", "Images and archives that are being pulled or imported.", []string{"kind"}, nil)
	diskDesc      = prometheus.NewDesc("berth_image_disk_bytes", "Bytes on disk of the layers of images, and of the writable layers of containers, as they were measured last.", []string{"what"}, nil)
)

// Describe implements prometheus.Collector.
func (imageMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- transfersDesc
	to <- diskDesc
}

// Collect implements prometheus.Collector.
func (c imageMetrics) Collect(to chan<- prometheus.Metric) {
	for kind, n := range c.s.InFlight() {
		to <- prometheus.MustNewConstMetric(transfersDesc, prometheus.GaugeValue, float64(n), kind)
	}
	u, ok := c.s.Measured()
	if !ok {
		return // it is not known, which is not 0
	}
	to <- prometheus.MustNewConstMetric(diskDesc, prometheus.GaugeValue, float64(u.Images.Bytes), "layers")
	to <- prometheus.MustNewConstMetric(diskDesc, prometheus.GaugeValue, float64(u.Containers.Bytes), "writable_layers")
	to <- prometheus.MustNewConstMetric(diskDesc, prometheus.GaugeValue, float64(u.Blobs), "blobs")
}
