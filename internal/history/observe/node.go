// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/ops"
	"berth/internal/base/version"
)

// Node is what metrics of the node are read from.
type Node struct {
	// Pods and Containers list what is on record.
	Pods       func() []*runtimeapi.PodSandbox
	Containers func() []*runtimeapi.Container
	// Ready has an error for each condition that is not met: runtime and network.
	Ready map[string]func() error
	// Space returns the size of the file system of a directory and what is free of it; 0 if it is
	// not known.
	Space func(dir string) (total, free uint64)
	Dirs  map[string]string // directories by the settings that name them
}

var (
	infoDesc       = prometheus.NewDesc("berth_build_info", "1, with the version of berth and of Go.", []string{"version", "goversion"}, nil)
	readyDesc      = prometheus.NewDesc("berth_ready", "1 if a condition of CRI's Status is met, else 0.", []string{"condition"}, nil)
	podsDesc       = prometheus.NewDesc("berth_pods", "Pods, by state.", []string{"state"}, nil)
	containersDesc = prometheus.NewDesc("berth_containers", "Containers, by state.", []string{"state"}, nil)
	sizeDesc       = prometheus.NewDesc("berth_filesystem_size_bytes", "Size of the file system of a directory of berth's.", []string{"dir"}, nil)
	freeDesc       = prometheus.NewDesc("berth_filesystem_free_bytes", "Bytes that are free on the file system of a directory of berth's.", []string{"dir"}, nil)
)

// ReadNode adds the metrics that are read from the node.
func (m *Metrics) ReadNode(n Node) { m.reg.MustRegister(n) }

// Describe implements prometheus.Collector.
func (n Node) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{infoDesc, readyDesc, podsDesc, containersDesc, sizeDesc, freeDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector. A state in which nothing is has the value 0.
func (n Node) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(infoDesc, 1, version.String(), runtime.Version())
	for condition, problem := range n.Ready {
		ready := 0.0
		if problem() == nil {
			ready = 1
		}
		gauge(readyDesc, ready, condition)
	}
	word := func(s string) string { return s[strings.Index(s, "_")+1:] }
	pods, containers := map[string]float64{}, map[string]float64{}
	for _, s := range runtimeapi.PodSandboxState_name {
		pods[word(s)] = 0
	}
	for _, s := range runtimeapi.ContainerState_name {
		containers[word(s)] = 0
	}
	for _, p := range n.Pods() {
		pods[word(p.GetState().String())]++
	}
	for _, c := range n.Containers() {
		containers[word(c.GetState().String())]++
	}
	for state, count := range pods {
		gauge(podsDesc, count, state)
	}
	for state, count := range containers {
		gauge(containersDesc, count, state)
	}
	for setting, dir := range n.Dirs {
		if total, free := n.Space(dir); total > 0 {
			gauge(sizeDesc, float64(total), setting)
			gauge(freeDesc, float64(free), setting)
		}
	}
}

// mostPlugins is how many calls of plug-ins have a label of their own: a node may name its plug-ins
// as it likes.
const mostPlugins = 64

// plugins measures the calls of plug-ins.
type plugins struct {
	seconds *prometheus.HistogramVec
	mu      *sync.Mutex
	known   map[string]bool
}

func newPlugins() plugins {
	return plugins{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_plugin_call_seconds",
			Help:    "Duration of calls of CNI and NRI plug-ins, verifiers of images and snapshotters, by the call.",
			Buckets: prometheus.ExponentialBuckets(0.001, 3, 12),
		}, []string{"call"}),
		mu:    &sync.Mutex{},
		known: map[string]bool{},
	}
}

// Ended measures an operation that has ended, if it was a call of a plug-in.
func (m *Metrics) Ended(o ops.Operation, took time.Duration) {
	if o.Kind != ops.Plugin && !strings.Contains(o.What, "CNI ") {
		return
	}
	call := o.What
	m.plugins.mu.Lock()
	if !m.plugins.known[call] && len(m.plugins.known) >= mostPlugins {
		call = "other"
	}
	m.plugins.known[call] = true
	m.plugins.mu.Unlock()
	m.plugins.seconds.WithLabelValues(call).Observe(took.Seconds())
}
