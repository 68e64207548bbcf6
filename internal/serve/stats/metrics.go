// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/prometheus/procfs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/cri138"
)

// maxDescriptors is how many descriptors of a container are looked at to count its sockets. How
// many it opens is up to the container.
const maxDescriptors = 20_000

// ListPodSandboxMetrics measures the sandboxes that are ready, and their containers that run. The
// result must not be changed.
func (s *Service) ListPodSandboxMetrics(ctx context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	return s.allMetrics.get(ctx)
}

func (s *Service) metricsOfAll(ctx context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	s.demand.note()
	sandboxes := s.sandboxes(ready())
	byPod := map[string][]container{}
	var wanted []layer
	for _, c := range s.containers(running()) {
		byPod[c.item.GetPodSandboxId()] = append(byPod[c.item.GetPodSandboxId()], c)
		wanted = append(wanted, c.layer())
	}
	used := s.layers.of(ctx, wanted, nil)
	nets := s.networks.of(namespaces(sandboxes))
	out := make([]*runtimeapi.PodSandboxMetrics, 0, len(sandboxes))
	for _, p := range sandboxes {
		m := &runtimeapi.PodSandboxMetrics{
			PodSandboxId: p.item.GetId(),
			Metrics:      s.podMetrics(p, nets[p.target.NetNS]),
		}
		for _, c := range byPod[p.item.GetId()] {
			if err := ctx.Err(); err != nil {
				return nil, fmt.Errorf("measure container %s: %w", c.item.GetId(), err)
			}
			m.ContainerMetrics = append(m.ContainerMetrics, &runtimeapi.ContainerMetrics{
				ContainerId: c.item.GetId(),
				Metrics:     s.containerMetrics(ctx, p, c, used[c.layer()]),
			})
		}
		out = append(out, m)
	}
	return out, nil
}

// metrics collects the metrics of one cgroup, which all have the same base labels.
type metrics struct {
	labels []string
	list   []*runtimeapi.Metric
}

// add adds a metric that was measured now. The labels beyond the base are in the order of the
// descriptor.
func (m *metrics) add(name string, v uint64, labels ...string) { m.addAt(0, name, v, labels...) }

// addAt adds a metric that was measured at an earlier instant, in nanoseconds since the epoch.
func (m *metrics) addAt(at int64, name string, v uint64, labels ...string) {
	all := make([]string, 0, len(m.labels)+len(labels))
	m.list = append(m.list, &runtimeapi.Metric{
		Name:        name,
		Timestamp:   at,
		MetricType:  descriptors[name].kind,
		LabelValues: append(append(all, m.labels...), labels...),
		Value:       value(v),
	})
}

// addSeconds adds a time. Clients of CRI before 1.38 read its whole seconds alone.
func (m *metrics) addSeconds(name string, d uint64, unit time.Duration, labels ...string) {
	in := uint64(time.Second / unit)
	m.add(name, d/in, labels...)
	cri138.Set(m.list[len(m.list)-1], &cri138.Metric{DoubleValue: &cri138.DoubleValue{Value: float64(d) / float64(in)}})
}

// podMetrics returns the metrics of the pod's network and, if it has a cgroup of its own, of that.
func (s *Service) podMetrics(p sandbox, net interfaces) []*runtimeapi.Metric {
	meta := p.item.GetMetadata()
	m := &metrics{labels: []string{
		"", s.cgroups.group(p.measured()).name(), "", p.item.GetId(), meta.GetNamespace(), meta.GetName(),
	}}
	for _, l := range net.list {
		m.add("container_network_receive_bytes_total", l.RxBytes, l.Name)
		m.add("container_network_receive_errors_total", l.RxErrors, l.Name)
		m.add("container_network_receive_packets_dropped_total", l.RxDropped, l.Name)
		m.add("container_network_receive_packets_total", l.RxPackets, l.Name)
		m.add("container_network_transmit_bytes_total", l.TxBytes, l.Name)
		m.add("container_network_transmit_errors_total", l.TxErrors, l.Name)
		m.add("container_network_transmit_packets_dropped_total", l.TxDropped, l.Name)
		m.add("container_network_transmit_packets_total", l.TxPackets, l.Name)
	}
	if p.group == "" {
		return m.list
	}
	m.labels[3] = "" // the pod's cgroup does not belong to a container
	if u, err := s.cgroups.group(p.group).read(everything); err == nil {
		m.usage(u)
	}
	return m.list
}

// containerMetrics returns the metrics of a container, and none if it has ended meanwhile.
func (s *Service) containerMetrics(ctx context.Context, p sandbox, c container, sp space) []*runtimeapi.Metric {
	g := s.group(c)
	u, err := g.read(everything)
	if err != nil {
		return nil
	}
	meta := p.item.GetMetadata()
	m := &metrics{labels: []string{
		c.item.GetMetadata().GetName(),
		g.name(),
		cmp.Or(c.item.GetImage().GetUserSpecifiedImage(), c.item.GetImage().GetImage()),
		c.item.GetId(),
		meta.GetNamespace(),
		meta.GetName(),
	}}
	m.usage(u)
	var status *runtimeapi.ContainerStatus
	if resp, err := s.pods.ContainerStatus(ctx, c.item.GetId(), false); err == nil {
		status = resp.GetStatus()
	}
	m.add("container_last_seen", uint64(u.at.Unix()))
	m.addSeconds("container_start_time_seconds", uint64(max(status.GetStartedAt(), 0)), time.Nanosecond)
	m.limits(g.limits(u), status.GetResources().GetLinux())
	if n, err := g.oomKills(); err == nil {
		m.add("container_oom_events_total", n)
	}
	m.layer(sp, s.layers.filesystem())
	m.processes(g, c.target.Process.Pid)
	return m.list
}

// usage adds the values read from a cgroup.
func (m *metrics) usage(u *usage) {
	if u.hasCPU {
		cpu := u.CpuStats
		m.addSeconds("container_cpu_usage_seconds_total", cpu.CpuUsage.TotalUsage, time.Nanosecond, "total")
		m.addSeconds("container_cpu_user_seconds_total", cpu.CpuUsage.UsageInUsermode, time.Nanosecond)
		m.addSeconds("container_cpu_system_seconds_total", cpu.CpuUsage.UsageInKernelmode, time.Nanosecond)
		m.pressure("cpu", cpu.PSI)
	}
	if u.hasCFS {
		throttling := u.CpuStats.ThrottlingData
		m.add("container_cpu_cfs_periods_total", throttling.Periods)
		m.add("container_cpu_cfs_throttled_periods_total", throttling.ThrottledPeriods)
		m.addSeconds("container_cpu_cfs_throttled_seconds_total", throttling.ThrottledTime, time.Nanosecond)
	}
	if u.hasMem {
		m.memory(u)
	}
	if u.hasPids {
		m.add("container_threads", u.PidsStats.Current)
		m.add("container_threads_max", u.PidsStats.Limit)
	}
	m.io(u)
	for size, h := range u.HugetlbStats {
		m.add("container_hugetlb_usage_bytes", h.Usage, size)
		m.add("container_hugetlb_max_usage_bytes", h.MaxUsage, size)
	}
}

func (m *metrics) memory(u *usage) {
	all, major := u.faults()
	m.add("container_memory_usage_bytes", u.MemoryStats.Usage.Usage)
	m.add("container_memory_max_usage_bytes", u.MemoryStats.Usage.MaxUsage)
	m.add("container_memory_working_set_bytes", u.workingSet())
	m.add("container_memory_rss", u.rss())
	m.add("container_memory_cache", u.cache())
	m.add("container_memory_mapped_file", u.mapped())
	m.add("container_memory_kernel_usage", u.kernel())
	m.add("container_memory_swap", u.swap())
	m.add("container_memory_failcnt", u.MemoryStats.Usage.Failcnt)
	m.add("container_memory_failures_total", all, "pgfault", "hierarchy")
	m.add("container_memory_failures_total", major, "pgmajfault", "hierarchy")
	m.pressure("memory", u.MemoryStats.PSI)
}

func (m *metrics) io(u *usage) {
	for _, e := range u.BlkioStats.IoServiceBytesRecursive {
		dev := device(e)
		switch op := strings.ToLower(e.Op); op {
		case "read":
			m.add("container_fs_reads_bytes_total", e.Value, dev)
			m.blkio(e, dev)
		case "write":
			m.add("container_fs_writes_bytes_total", e.Value, dev)
			m.blkio(e, dev)
		}
	}
	for _, e := range u.BlkioStats.IoServicedRecursive {
		switch strings.ToLower(e.Op) {
		case "read":
			m.add("container_fs_reads_total", e.Value, device(e))
		case "write":
			m.add("container_fs_writes_total", e.Value, device(e))
		}
	}
	m.pressure("io", u.BlkioStats.PSI)
}

func (m *metrics) blkio(e cgroups.BlkioStatEntry, dev string) {
	operation := strings.ToUpper(e.Op[:1]) + strings.ToLower(e.Op[1:])
	m.add("container_blkio_device_usage_total", e.Value, dev, strconv.FormatUint(e.Major, 10), strconv.FormatUint(e.Minor, 10), operation)
}

// device returns the path of a block device, or its numbers if it has no name.
func device(e cgroups.BlkioStatEntry) string {
	numbers := fmt.Sprintf("%d:%d", e.Major, e.Minor)
	if link, err := os.Readlink("/sys/dev/block/" + numbers); err == nil {
		return "/dev/" + filepath.Base(link)
	}
	return numbers
}

// pressure adds the stalls of a resource. The kernel counts microseconds.
func (m *metrics) pressure(resource string, p *cgroups.PSIStats) {
	if p == nil {
		return
	}
	m.addSeconds("container_pressure_"+resource+"_waiting_seconds_total", p.Some.Total, time.Microsecond)
	m.addSeconds("container_pressure_"+resource+"_stalled_seconds_total", p.Full.Total, time.Microsecond)
}

// limits adds the limits as they are. The CPU shares of cgroup v2 are the requested ones, because
// runtimes convert shares to weights in more than one way.
func (m *metrics) limits(l limits, asked *runtimeapi.LinuxContainerResources) {
	const defaultShares, defaultPeriod = 1024, 100_000
	shares := cmp.Or(l.shares, uint64(max(asked.GetCpuShares(), 0)), defaultShares)
	m.add("container_spec_cpu_shares", shares)
	m.add("container_spec_cpu_period", cmp.Or(l.period, defaultPeriod))
	if l.quota > 0 {
		m.add("container_spec_cpu_quota", l.quota)
	}
	m.add("container_spec_memory_limit_bytes", l.memory)
	m.add("container_spec_memory_reservation_limit_bytes", l.reservation)
	m.add("container_spec_memory_swap_limit_bytes", l.swap)
}

// layer adds the writable layer as it was sampled last.
func (m *metrics) layer(sp space, fs filesystem) {
	if !sp.at.IsZero() {
		m.addAt(sp.at.UnixNano(), "container_fs_usage_bytes", sp.bytes, fs.mountpoint)
	}
	if !fs.at.IsZero() {
		at := fs.at.UnixNano()
		m.addAt(at, "container_fs_limit_bytes", fs.bytes, fs.mountpoint)
		m.addAt(at, "container_fs_inodes_total", fs.inodes, fs.mountpoint)
		m.addAt(at, "container_fs_inodes_free", fs.inodesFree, fs.mountpoint)
	}
}

// processes counts processes, descriptors and sockets. Descriptors are counted up to a bound; above
// it there is no count.
func (m *metrics) processes(g group, first uint32) {
	pids, err := g.processes()
	if err != nil {
		return
	}
	m.add("container_processes", uint64(len(pids)))
	if open, sockets, ok := descriptorsOf(pids); ok {
		m.add("container_file_descriptors", open)
		m.add("container_sockets", sockets)
	}
	p, err := procfs.NewProc(int(first))
	if err != nil {
		return
	}
	if l, err := p.Limits(); err == nil {
		m.add("container_ulimits_soft", l.OpenFiles, "max_open_files")
	}
}

func descriptorsOf(pids []int) (open, sockets uint64, ok bool) {
	for _, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
		f, err := os.Open(dir)
		if err != nil {
			continue // it ended meanwhile
		}
		names, _ := f.Readdirnames(maxDescriptors - int(open) + 1)
		_ = f.Close()
		if open += uint64(len(names)); open > maxDescriptors {
			return 0, 0, false
		}
		for _, n := range names {
			if target, err := os.Readlink(filepath.Join(dir, n)); err == nil && strings.HasPrefix(target, "socket:") {
				sockets++
			}
		}
	}
	return open, sockets, true
}
