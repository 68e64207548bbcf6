// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
)

func statsCommand(svc *service, pr *printer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stats [NAME|ID...]",
		Short: "Show what containers use",
		Long: "Show CPU, memory and disk usage of running containers: of all, or of those that are named and of the pods that\n" +
			"are named. The CPU usage is in percent of one CPU, since the last time that anybody asked. `berth top` goes on\n" +
			"showing it.",
		ValidArgsFunction: svc.complete(pods, containers, running),
	}
	cmd.Flags().Bool("no-stream", true, "print once, which it always does; berth top goes on")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			ids := map[string]bool{}
			for _, arg := range args {
				o, err := resolve(ctx, c, arg, true, true)
				if err != nil {
					return err
				}
				ids[o.id] = true
			}
			list, err := usages(ctx, c, ids)
			if err != nil {
				return err
			}
			sortUsages(list, byPod)
			return pr.print(cmd.OutOrStdout(), usageRows(list), func(w *tabwriter.Writer) {
				writeUsages(w, list)
			})
		})
	}
	return cmd
}

type containerUsage struct {
	stats *runtimeapi.ContainerStats
	pod   string // NAMESPACE/NAME
}

func (u containerUsage) name() string { return u.stats.GetAttributes().GetMetadata().GetName() }
func (u containerUsage) cpu() uint64  { return u.stats.GetCpu().GetUsageNanoCores().GetValue() }
func (u containerUsage) mem() uint64  { return u.stats.GetMemory().GetWorkingSetBytes().GetValue() }
func (u containerUsage) disk() uint64 { return u.stats.GetWritableLayer().GetUsedBytes().GetValue() }

// usages asks for the resource use of running containers. ids are the selected containers and pods;
// empty for all.
func usages(ctx context.Context, c *client.Client, ids map[string]bool) ([]containerUsage, error) {
	resp, err := c.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	if err != nil {
		return nil, err
	}
	podName, err := podNames(ctx, c)
	if err != nil {
		return nil, err
	}
	list, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return nil, err
	}
	podOf := map[string]string{} // of those that run
	for _, ct := range list.GetContainers() {
		podOf[ct.GetId()] = ct.GetPodSandboxId()
	}
	var out []containerUsage
	for _, st := range resp.GetStats() {
		id := st.GetAttributes().GetId()
		pod, runs := podOf[id]
		if runs && (len(ids) == 0 || ids[id] || ids[pod]) {
			out = append(out, containerUsage{st, podName[pod]})
		}
	}
	return out, nil
}

// usageRow is the usage of a container for programs. A number that is not known is absent.
type usageRow struct {
	ID               string    `json:"id"`
	Namespace        string    `json:"namespace"`
	Pod              string    `json:"pod"`
	Name             string    `json:"name"`
	At               time.Time `json:"at,omitzero"`
	CPUNanoCores     *uint64   `json:"cpuNanoCores,omitempty"`
	MemoryBytes      *uint64   `json:"memoryBytes,omitempty"`
	MemoryLimitBytes *uint64   `json:"memoryLimitBytes,omitempty"`
	SwapBytes        *uint64   `json:"swapBytes,omitempty"`
	DiskBytes        *uint64   `json:"diskBytes,omitempty"`
}

func usageRows(list []containerUsage) []usageRow {
	known := func(v *runtimeapi.UInt64Value) *uint64 {
		if v == nil {
			return nil
		}
		return &v.Value
	}
	rows := make([]usageRow, 0, len(list))
	for _, u := range list {
		s := u.stats
		r := usageRow{
			ID:           s.GetAttributes().GetId(),
			Name:         u.name(),
			At:           instant(s.GetCpu().GetTimestamp()),
			CPUNanoCores: known(s.GetCpu().GetUsageNanoCores()),
			MemoryBytes:  known(s.GetMemory().GetWorkingSetBytes()),
			SwapBytes:    known(s.GetSwap().GetSwapUsageBytes()),
			DiskBytes:    known(s.GetWritableLayer().GetUsedBytes()),
		}
		r.Namespace, r.Pod, _ = strings.Cut(u.pod, "/")
		if v := s.GetMemory().GetAvailableBytes(); v != nil {
			limit := v.GetValue() + u.mem()
			r.MemoryLimitBytes = &limit
		}
		rows = append(rows, r)
	}
	return rows
}

// order compares containers for a table.
type order func(a, b containerUsage) int

func byPod(a, b containerUsage) int  { return strings.Compare(a.pod, b.pod) }
func byName(a, b containerUsage) int { return strings.Compare(a.name(), b.name()) }

// sortUsages sorts; equal items are in the order of names, so that lines do not jump.
func sortUsages(list []containerUsage, by order) {
	slices.SortFunc(list, func(a, b containerUsage) int {
		return cmp.Or(by(a, b), byPod(a, b), byName(a, b), strings.Compare(a.stats.GetAttributes().GetId(), b.stats.GetAttributes().GetId()))
	})
}

func writeUsages(w io.Writer, list []containerUsage) {
	fmt.Fprintln(w, "CONTAINER\tNAME\tPOD\tCPU\tMEMORY\tLIMIT\tSWAP\tDISK")
	for _, u := range list {
		s := u.stats
		cpu := "-" // the first sample of a container has no rate
		if v := s.GetCpu().GetUsageNanoCores(); v != nil {
			cpu = fmt.Sprintf("%.1f%%", float64(v.GetValue())/1e7)
		}
		limit := "-"
		if v := s.GetMemory().GetAvailableBytes(); v != nil {
			limit = size(v.GetValue() + u.mem())
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			short(s.GetAttributes().GetId()),
			u.name(),
			u.pod,
			cpu,
			sizeOf(s.GetMemory().GetWorkingSetBytes()),
			limit,
			sizeOf(s.GetSwap().GetSwapUsageBytes()),
			sizeOf(s.GetWritableLayer().GetUsedBytes()))
	}
}

// sizeOf is a number of bytes, or a dash if it is not known.
func sizeOf(v *runtimeapi.UInt64Value) string {
	if v == nil {
		return "-"
	}
	return size(v.GetValue())
}
