// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Every metric has the labels that cAdvisor's users know: "id" is the path of the cgroup, and
// "name" the ID of the container.
var baseLabels = []string{"container", "id", "image", "name", "namespace", "pod"}

const (
	counter = runtimeapi.MetricType_COUNTER
	gauge   = runtimeapi.MetricType_GAUGE
)

// descriptor describes a metric: its help text, and its labels besides the base.
type descriptor struct {
	help   string
	kind   runtimeapi.MetricType
	labels []string
}

// descriptors are all metrics. Times in seconds have a fraction beside their whole seconds.
var descriptors = map[string]descriptor{
	"container_blkio_device_usage_total":               {"Bytes that the container read from and wrote to a block device.", counter, []string{"device", "major", "minor", "operation"}},
	"container_cpu_cfs_periods_total":                  {"Number of periods of the CPU quota that have elapsed.", counter, nil},
	"container_cpu_cfs_throttled_periods_total":        {"Number of periods in which the CPU quota was used up.", counter, nil},
	"container_cpu_cfs_throttled_seconds_total":        {"Time for which the container was throttled.", counter, nil},
	"container_cpu_system_seconds_total":               {"CPU time that was used in the kernel.", counter, nil},
	"container_cpu_usage_seconds_total":                {"CPU time that was used on all CPUs.", counter, []string{"cpu"}},
	"container_cpu_user_seconds_total":                 {"CPU time that was used in user mode.", counter, nil},
	"container_file_descriptors":                       {"Number of open file descriptors.", gauge, nil},
	"container_fs_inodes_free":                         {"Number of free inodes of the file system.", gauge, []string{"device"}},
	"container_fs_inodes_total":                        {"Number of inodes of the file system.", gauge, []string{"device"}},
	"container_fs_limit_bytes":                         {"Size of the file system.", gauge, []string{"device"}},
	"container_fs_reads_bytes_total":                   {"Bytes read from a block device.", counter, []string{"device"}},
	"container_fs_reads_total":                         {"Number of reads from a block device.", counter, []string{"device"}},
	"container_fs_usage_bytes":                         {"Bytes that the writable layer uses.", gauge, []string{"device"}},
	"container_fs_writes_bytes_total":                  {"Bytes written to a block device.", counter, []string{"device"}},
	"container_fs_writes_total":                        {"Number of writes to a block device.", counter, []string{"device"}},
	"container_hugetlb_max_usage_bytes":                {"The most huge pages that were ever used.", gauge, []string{"pagesize"}},
	"container_hugetlb_usage_bytes":                    {"Huge pages in use.", gauge, []string{"pagesize"}},
	"container_last_seen":                              {"When the container was last measured, in seconds since the epoch.", gauge, nil},
	"container_memory_cache":                           {"Bytes of the page cache.", gauge, nil},
	"container_memory_failcnt":                         {"Number of times that memory reached its limit.", counter, nil},
	"container_memory_failures_total":                  {"Number of page faults.", counter, []string{"failure_type", "scope"}},
	"container_memory_kernel_usage":                    {"Bytes of memory that the kernel uses for the container.", gauge, nil},
	"container_memory_mapped_file":                     {"Bytes of mapped files.", gauge, nil},
	"container_memory_max_usage_bytes":                 {"The most memory that was ever used.", gauge, nil},
	"container_memory_rss":                             {"Bytes of anonymous memory.", gauge, nil},
	"container_memory_swap":                            {"Bytes that are swapped out.", gauge, nil},
	"container_memory_usage_bytes":                     {"Bytes of memory in use, however long ago it was used.", gauge, nil},
	"container_memory_working_set_bytes":               {"Bytes of memory in use without the file pages that were not used lately.", gauge, nil},
	"container_network_receive_bytes_total":            {"Bytes received.", counter, []string{"interface"}},
	"container_network_receive_errors_total":           {"Number of errors while receiving.", counter, []string{"interface"}},
	"container_network_receive_packets_dropped_total":  {"Number of packets dropped while receiving.", counter, []string{"interface"}},
	"container_network_receive_packets_total":          {"Number of packets received.", counter, []string{"interface"}},
	"container_network_transmit_bytes_total":           {"Bytes sent.", counter, []string{"interface"}},
	"container_network_transmit_errors_total":          {"Number of errors while sending.", counter, []string{"interface"}},
	"container_network_transmit_packets_dropped_total": {"Number of packets dropped while sending.", counter, []string{"interface"}},
	"container_network_transmit_packets_total":         {"Number of packets sent.", counter, []string{"interface"}},
	"container_oom_events_total":                       {"Number of times that the OOM killer fired.", counter, nil},
	"container_pressure_cpu_stalled_seconds_total":     {"Time for which all tasks waited for a CPU.", counter, nil},
	"container_pressure_cpu_waiting_seconds_total":     {"Time for which some task waited for a CPU.", counter, nil},
	"container_pressure_io_stalled_seconds_total":      {"Time for which all tasks waited for I/O.", counter, nil},
	"container_pressure_io_waiting_seconds_total":      {"Time for which some task waited for I/O.", counter, nil},
	"container_pressure_memory_stalled_seconds_total":  {"Time for which all tasks waited for memory.", counter, nil},
	"container_pressure_memory_waiting_seconds_total":  {"Time for which some task waited for memory.", counter, nil},
	"container_processes":                              {"Number of processes.", gauge, nil},
	"container_sockets":                                {"Number of open sockets.", gauge, nil},
	"container_spec_cpu_period":                        {"Period of the CPU quota, in microseconds.", gauge, nil},
	"container_spec_cpu_quota":                         {"CPU quota, in microseconds per period.", gauge, nil},
	"container_spec_cpu_shares":                        {"CPU shares.", gauge, nil},
	"container_spec_memory_limit_bytes":                {"Memory limit; 0 for none.", gauge, nil},
	"container_spec_memory_reservation_limit_bytes":    {"Memory reservation; 0 for none.", gauge, nil},
	"container_spec_memory_swap_limit_bytes":           {"Limit of memory and swap; 0 for none.", gauge, nil},
	"container_start_time_seconds":                     {"When the container was started, in seconds since the epoch.", gauge, nil},
	"container_threads":                                {"Number of threads.", gauge, nil},
	"container_threads_max":                            {"The most threads that are allowed; 0 for no limit.", gauge, nil},
	"container_ulimits_soft":                           {"Soft limit of the first process.", gauge, []string{"ulimit"}},
}

// MetricDescriptors describes all metrics, by name.
func (s *Service) MetricDescriptors() []*runtimeapi.MetricDescriptor {
	out := make([]*runtimeapi.MetricDescriptor, 0, len(descriptors))
	for name, d := range descriptors {
		out = append(out, &runtimeapi.MetricDescriptor{
			Name:      name,
			Help:      d.help,
			LabelKeys: slices.Concat(baseLabels, d.labels),
		})
	}
	slices.SortFunc(out, func(a, b *runtimeapi.MetricDescriptor) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return out
}
