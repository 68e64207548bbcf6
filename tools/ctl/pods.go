// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
)

// podRow is a pod of pods.
type podRow struct {
	*common
	UID         string   `json:"uid"`
	Attempt     uint32   `json:"attempt"`
	Runtime     string   `json:"runtime"`
	IPs         []string `json:"ips"`
	Running     int      `json:"running"`
	Containers  int      `json:"containers"` // by their names: attempts count once
	Restarts    uint32   `json:"restarts"`
	OnRecord    bool     `json:"onRecord"`
	MemoryBytes uint64   `json:"memoryBytes,omitempty"`
}

func podsCommand(svc *service, pr *printer) *cobra.Command {
	l := &lister{
		svc:    svc,
		pr:     pr,
		header: []string{"POD ID", "NAMESPACE", "NAME", "STATE", "RUNNING", "RESTARTS", "AGE", "IP"},
		wide:   []string{"POD ID", "NAMESPACE", "NAME", "STATE", "RUNNING", "RESTARTS", "AGE", "IP", "RUNTIME", "ATTEMPT", "CREATED", "UID"},
		states: []string{"ready", "ended", "notready"},
		items:  podItems,
	}
	cmd := &cobra.Command{
		Use:   "pods",
		Short: "List pods",
		Long: "List pods: how many of their containers run, and how often those were restarted. What is under way of pods follows\n" +
			"the list, also of those that are still being made. --sort memory adds what the containers use.",
		Example: "  berth pods --sort restarts\n  berth pods -n default --state ready --watch",
		Args:    cobra.NoArgs,
	}
	l.flags(cmd)
	return cmd
}

// podItems lists the pods that have the labels. used is the memory of containers by ID, if it is
// wanted.
func podItems(ctx context.Context, c *client.Client, labels map[string]string, used map[string]uint64) ([]item, error) {
	ends, err := endsOf(ctx, c)
	if err != nil {
		return nil, err
	}
	list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: labels}})
	if err != nil {
		return nil, err
	}
	cts, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	type share struct {
		latest  map[string]uint32 // the attempt, by the name of the container
		running int
		memory  uint64
	}
	of := map[string]*share{}
	for _, ct := range cts.GetContainers() {
		s := of[ct.GetPodSandboxId()]
		if s == nil {
			s = &share{latest: map[string]uint32{}}
			of[ct.GetPodSandboxId()] = s
		}
		name := ct.GetMetadata().GetName()
		s.latest[name] = max(s.latest[name], ct.GetMetadata().GetAttempt())
		s.memory += used[ct.GetId()]
		if ends.runs(ct) {
			s.running++
		}
	}
	items := make([]item, 0, len(list.GetItems()))
	for _, p := range list.GetItems() {
		s := of[p.GetId()]
		if s == nil {
			s = &share{}
		}
		m := p.GetMetadata()
		of := newCommon(p.GetId(), m.GetNamespace(), m.GetName(), m.GetNamespace()+"/", ends.state(p.GetId(), p.GetState()),
			p.GetCreatedAt(), p.GetLabels(), p.GetAnnotations())
		row := &podRow{
			common:      &of,
			UID:         m.GetUid(),
			Attempt:     m.GetAttempt(),
			Runtime:     p.GetRuntimeHandler(),
			IPs:         []string{},
			Running:     s.running,
			Containers:  len(s.latest),
			OnRecord:    of.State != endedState,
			MemoryBytes: s.memory,
		}
		for _, attempt := range s.latest {
			row.Restarts += attempt
		}
		items = append(items, item{
			common:   of,
			row:      row,
			restarts: row.Restarts,
			running:  row.Running,
			memory:   row.MemoryBytes,
			complete: func(ctx context.Context) { row.complete(ctx, c) },
			colour:   row.colour,
			cells: func() map[string]string {
				return map[string]string{
					"POD ID":    of.ID,
					"NAMESPACE": of.Namespace,
					"NAME":      of.Name,
					"STATE":     of.State,
					"RUNNING":   fmt.Sprintf("%d/%d", row.Running, row.Containers),
					"RESTARTS":  strconv.FormatUint(uint64(row.Restarts), 10),
					"AGE":       shortAge(of.created),
					"CREATED":   timeOf(of.CreatedAt),
					"RUNTIME":   row.Runtime,
					"ATTEMPT":   strconv.FormatUint(uint64(row.Attempt), 10),
					"UID":       row.UID,
					"IP":        strings.Join(row.IPs, ","),
					"MEMORY":    memoryOf(row.MemoryBytes),
				}
			},
		})
	}
	return items, nil
}

// complete asks for the addresses of a pod.
func (r *podRow) complete(ctx context.Context, c *client.Client) {
	st, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: r.ID})
	if ip := st.GetStatus().GetNetwork().GetIp(); err == nil && ip != "" {
		r.IPs = []string{ip}
		for _, also := range st.GetStatus().GetNetwork().GetAdditionalIps() {
			r.IPs = append(r.IPs, also.GetIp())
		}
	}
}

// colour marks a pod none of whose containers runs.
func (r *podRow) colour() string {
	if r.State == endedState || r.State == "READY" && r.Running == 0 && r.Containers > 0 {
		return doubtful
	}
	return ""
}
