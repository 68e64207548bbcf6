// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
)

// containerRow is a container of ps.
type containerRow struct {
	*common
	Pod              string    `json:"pod"`
	PodID            string    `json:"podId"`
	Image            string    `json:"image"`
	ImageID          string    `json:"imageId"`
	Restarts         uint32    `json:"restarts"`
	StartedAt        time.Time `json:"startedAt,omitzero"`
	FinishedAt       time.Time `json:"finishedAt,omitzero"`
	ExitCode         *int32    `json:"exitCode,omitempty"` // of one that has ended
	Reason           string    `json:"reason,omitempty"`
	Message          string    `json:"message,omitempty"`
	OOMKillsSurvived int       `json:"oomKillsSurvived"`
	OnRecord         bool      `json:"onRecord"` // false while the state is ENDED
	MemoryBytes      uint64    `json:"memoryBytes,omitempty"`
}

func psCommand(svc *service, pr *printer) *cobra.Command {
	l := &lister{
		svc:          svc,
		pr:           pr,
		header:       []string{"CONTAINER", "NAME", "POD", "STATE", "AGE", "RESTARTS", "EXIT"},
		wide:         []string{"CONTAINER", "NAME", "POD", "STATE", "AGE", "RESTARTS", "EXIT", "IMAGE", "IMAGE ID", "POD ID", "STARTED"},
		states:       []string{"created", "running", "ended", "exited", "unknown"},
		usual:        []string{"RUNNING", endedState},
		items:        containerItems,
		ofContainers: true,
	}
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List containers",
		Long: "List the containers that run. RESTARTS is the number of a container's attempt, as its client counts them; EXIT says how\n" +
			"a container ended, or which OOM kills one that runs has survived. A container that is ENDED is RUNNING for CRI until\n" +
			"its end is on record, which takes long only where the disk cannot be written. What is under way of containers follows the\n" +
			"list, also of those that are still being made. --sort memory adds what they use.",
		Example: "  berth ps -a --sort restarts\n  berth ps -n kube-system -l k8s-app=kube-dns\n  berth ps --watch",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVarP(&l.all, "all", "a", false, "also list containers that are not running")
	l.flags(cmd)
	return cmd
}

// containerItems lists the containers that have the labels. used is their memory by ID, if it is
// wanted.
func containerItems(ctx context.Context, c *client.Client, labels map[string]string, used map[string]uint64) ([]item, error) {
	ends, err := endsOf(ctx, c)
	if err != nil {
		return nil, err
	}
	list, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: labels}})
	if err != nil {
		return nil, err
	}
	pods, err := podNames(ctx, c)
	if err != nil {
		return nil, err
	}
	items := make([]item, 0, len(list.GetContainers()))
	for _, ct := range list.GetContainers() {
		pod := pods[ct.GetPodSandboxId()]
		namespace, podName, _ := strings.Cut(pod, "/")
		of := newCommon(ct.GetId(), namespace, ct.GetMetadata().GetName(), pod+"/", ends.state(ct.GetId(), ct.GetState()),
			ct.GetCreatedAt(), ct.GetLabels(), ct.GetAnnotations())
		row := &containerRow{
			common:      &of,
			Pod:         podName,
			PodID:       ct.GetPodSandboxId(),
			Image:       ct.GetImage().GetImage(),
			ImageID:     cmp.Or(ct.GetImageId(), ct.GetImageRef()), // a runtime of before has the latter alone
			Restarts:    ct.GetMetadata().GetAttempt(),
			OnRecord:    of.State != endedState,
			MemoryBytes: used[ct.GetId()],
		}
		items = append(items, item{
			common:   of,
			row:      row,
			restarts: row.Restarts,
			memory:   row.MemoryBytes,
			complete: func(ctx context.Context) { row.complete(ctx, c, ends[of.ID]) },
			colour:   row.colour,
			cells: func() map[string]string {
				return map[string]string{
					"CONTAINER": of.ID,
					"NAME":      of.Name,
					"POD":       pod,
					"IMAGE":     row.Image,
					"IMAGE ID":  row.ImageID,
					"POD ID":    row.PodID,
					"STATE":     of.State,
					"AGE":       shortAge(of.created),
					"STARTED":   timeOf(row.StartedAt),
					"RESTARTS":  strconv.FormatUint(uint64(row.Restarts), 10),
					"EXIT":      row.exit(),
					"MEMORY":    memoryOf(row.MemoryBytes),
				}
			},
		})
	}
	return items, nil
}

// complete asks for the end of a container and for all else that its list lacks.
func (r *containerRow) complete(ctx context.Context, c *client.Client, end *berthv1.Exit) {
	resp, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: r.ID})
	if err != nil {
		return
	}
	st := resp.GetStatus()
	r.StartedAt, r.FinishedAt = instant(st.GetStartedAt()), instant(st.GetFinishedAt())
	r.Reason, r.Message = st.GetReason(), st.GetMessage()
	switch {
	case r.State == endedState:
		r.FinishedAt = end.GetEnded().AsTime()
		if end.GetMeasured() {
			code := int32(end.GetCode()) // of a process: 0 to 255
			r.ExitCode = &code
		}
	case st.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED:
		code := st.GetExitCode()
		r.ExitCode = &code
	default: // the message of one that runs begins with the number
		_, _ = fmt.Sscanf(st.GetMessage(), "%d OOM kill", &r.OOMKillsSurvived)
	}
}

// exit describes the end of a container, or how many OOM kills a running one has survived; "" if
// there is none, or if its status cannot be read.
func (r *containerRow) exit() string {
	switch {
	case r.State == endedState && r.ExitCode == nil:
		return "not on record yet"
	case r.State == endedState:
		return fmt.Sprintf("%d, %s, not on record yet", *r.ExitCode, age(r.FinishedAt.UnixNano()))
	case r.ExitCode != nil:
		return fmt.Sprintf("%d %s, %s", *r.ExitCode, r.Reason, age(r.FinishedAt.UnixNano()))
	}
	survived, _, _ := strings.Cut(r.Message, ",")
	return survived
}

// colour marks a container that has failed, or that is restarted again and again.
func (r *containerRow) colour() string {
	switch {
	case r.ExitCode != nil && *r.ExitCode != 0, r.State == "UNKNOWN":
		return bad
	case r.State == endedState, r.Restarts > 2, r.OOMKillsSurvived > 0:
		return doubtful
	}
	return ""
}
