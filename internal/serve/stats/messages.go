// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"github.com/opencontainers/cgroups"
	"github.com/prometheus/procfs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// podInterface is the name of a pod's default interface, which CNI is asked for.
const podInterface = "eth0"

func value(v uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: v} }

func cpuUsage(u *usage) *runtimeapi.CpuUsage {
	return &runtimeapi.CpuUsage{
		Timestamp:            u.at.UnixNano(),
		UsageCoreNanoSeconds: value(u.CpuStats.CpuUsage.TotalUsage),
		Psi:                  pressure(u.CpuStats.PSI),
	}
}

// memoryUsage returns nil if the group has no memory controller.
func memoryUsage(u *usage) *runtimeapi.MemoryUsage {
	if !u.hasMem {
		return nil
	}
	all, major := u.faults()
	out := &runtimeapi.MemoryUsage{
		Timestamp:       u.at.UnixNano(),
		WorkingSetBytes: value(u.workingSet()),
		UsageBytes:      value(u.MemoryStats.Usage.Usage),
		RssBytes:        value(u.rss()),
		PageFaults:      value(all),
		MajorPageFaults: value(major),
		Psi:             pressure(u.MemoryStats.PSI),
	}
	if v, ok := u.available(); ok {
		out.AvailableBytes = value(v)
	}
	if u.guest {
		out.PageFaults, out.MajorPageFaults = nil, nil
		if u.rss() == 0 {
			out.RssBytes = nil
		}
	}
	return out
}

func swapUsage(u *usage) *runtimeapi.SwapUsage {
	if !u.hasMem || u.guest {
		return nil
	}
	out := &runtimeapi.SwapUsage{
		Timestamp:      u.at.UnixNano(),
		SwapUsageBytes: value(u.swap()),
	}
	if v, ok := u.swapLeft(); ok {
		out.SwapAvailableBytes = value(v)
	}
	return out
}

// ioUsage returns nil if the kernel does not measure pressure, which is CRI's only figure of I/O.
func ioUsage(u *usage) *runtimeapi.IoUsage {
	if u.BlkioStats.PSI == nil {
		return nil
	}
	return &runtimeapi.IoUsage{Timestamp: u.at.UnixNano(), Psi: pressure(u.BlkioStats.PSI)}
}

// pressure converts the microseconds of the kernel to the nanoseconds of CRI.
func pressure(p *cgroups.PSIStats) *runtimeapi.PsiStats {
	if p == nil {
		return nil
	}
	data := func(d cgroups.PSIData) *runtimeapi.PsiData {
		return &runtimeapi.PsiData{
			Total:  d.Total * 1000,
			Avg10:  d.Avg10,
			Avg60:  d.Avg60,
			Avg300: d.Avg300,
		}
	}
	return &runtimeapi.PsiStats{Full: data(p.Full), Some: data(p.Some)}
}

func filesystemUsage(mountpoint string, s space) *runtimeapi.FilesystemUsage {
	return &runtimeapi.FilesystemUsage{
		Timestamp:  s.at.UnixNano(),
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: mountpoint},
		UsedBytes:  value(s.bytes),
		InodesUsed: value(s.inodes),
	}
}

// networkUsage returns nil if nothing is known of the pod's network.
func networkUsage(i interfaces) *runtimeapi.NetworkUsage {
	if i.at.IsZero() {
		return nil
	}
	out := &runtimeapi.NetworkUsage{Timestamp: i.at.UnixNano()}
	for _, line := range i.list {
		m := interfaceUsage(line)
		if line.Name == podInterface {
			out.DefaultInterface = m
		} else {
			out.Interfaces = append(out.Interfaces, m)
		}
	}
	return out
}

func interfaceUsage(l procfs.NetDevLine) *runtimeapi.NetworkInterfaceUsage {
	return &runtimeapi.NetworkInterfaceUsage{
		Name:     l.Name,
		RxBytes:  value(l.RxBytes),
		RxErrors: value(l.RxErrors),
		TxBytes:  value(l.TxBytes),
		TxErrors: value(l.TxErrors),
	}
}

// addCPU adds the usage of containers to that of their sandbox. The sum has a rate if all have one.
func addCPU(sum *runtimeapi.CpuUsage, containers []*runtimeapi.ContainerStats) *runtimeapi.CpuUsage {
	if sum == nil {
		return nil
	}
	sum.Psi = nil
	for _, c := range containers {
		cpu := c.GetCpu()
		if cpu == nil {
			continue
		}
		sum.UsageCoreNanoSeconds.Value += cpu.GetUsageCoreNanoSeconds().GetValue()
		if cpu.GetUsageNanoCores() == nil || sum.UsageNanoCores == nil {
			sum.UsageNanoCores = nil
			continue
		}
		sum.UsageNanoCores.Value += cpu.GetUsageNanoCores().GetValue()
	}
	return sum
}

// noUsage returns the usage of a sandbox without a process.
func noUsage(at int64) (*runtimeapi.CpuUsage, *runtimeapi.MemoryUsage) {
	return &runtimeapi.CpuUsage{
			Timestamp:            at,
			UsageCoreNanoSeconds: value(0),
			UsageNanoCores:       value(0),
		}, &runtimeapi.MemoryUsage{
			Timestamp:       at,
			WorkingSetBytes: value(0),
			UsageBytes:      value(0),
			RssBytes:        value(0),
			PageFaults:      value(0),
			MajorPageFaults: value(0),
		}
}

// addMemory adds the usage of containers to that of their sandbox. The sum has no limit.
func addMemory(sum *runtimeapi.MemoryUsage, containers []*runtimeapi.ContainerStats) *runtimeapi.MemoryUsage {
	if sum == nil {
		return nil
	}
	sum.Psi, sum.AvailableBytes = nil, nil
	for _, c := range containers {
		m := c.GetMemory()
		sum.WorkingSetBytes.Value += m.GetWorkingSetBytes().GetValue()
		sum.UsageBytes.Value += m.GetUsageBytes().GetValue()
		sum.RssBytes.Value += m.GetRssBytes().GetValue()
		sum.PageFaults.Value += m.GetPageFaults().GetValue()
		sum.MajorPageFaults.Value += m.GetMajorPageFaults().GetValue()
	}
	return sum
}
