// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
)

// turns are the kinds of entries about a change of a sandbox or container, or of the node.
var turns = []string{
	"SandboxReady", "SandboxNotMade", "ContainerCreated", "ContainerNotMade", "ContainerRunning", "StartFailed", "StopRequested",
	"ExitSettled", "ExitCorrected", "CodesDiffer", "ExitRecalled", "ContainerCrashed", "OOMKillSurvived", "ShimDied",
	"RemovalRequested", "Removed",
	"ImagePulled", "ImageNotPulled", "ImageRefused", "ProfilePulled", "ProfileNotPulled", "AccessBegan", "AccessRefused",
	"BerthStarted", "BerthStopped", "MachineShutDown", "ContainerdLost", "EntriesLost",
}

func eventsCommand(svc *service, pr *printer) *cobra.Command {
	var since time.Duration
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Print what becomes of containers and pods on the node, as it happens",
		Long: "Print what becomes of containers and pods on the node, as it happens, from the timeline; --since begins earlier. It is what `berth\n" +
			"timeline --node -f` prints without the steps in between. Of another runtime, it prints the events that CRI has.",
		Args: cobra.NoArgs,
	}
	cmd.Flags().DurationVar(&since, "since", 0, "begin with what happened so long ago, such as 2h")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if since < 0 {
			return fmt.Errorf("--since %s is negative", since)
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			err := printTurns(ctx, pr, c, cmd.OutOrStdout(), time.Now().Add(-since))
			if client.IsUnimplemented(err) {
				return containerEvents(ctx, pr, c, cmd.OutOrStdout())
			}
			return err
		})
	}
	return cmd
}

// turns prints entries from an instant on, until ctx ends.
func printTurns(ctx context.Context, pr *printer, c *client.Client, w io.Writer, from time.Time) error {
	lines := timelineLines{w: w, node: true}
	q := &berthv1.TimelineRequest{Node: true, Since: timestamppb.New(from)}
	for {
		h, err := c.Timeline(ctx, q)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		h.Entries = slices.DeleteFunc(h.GetEntries(), func(e *berthv1.Entry) bool {
			// an entry without a kind describes a gap
			return e.GetKind() != "" && !slices.Contains(turns, e.GetKind())
		})
		if pr.format == "table" {
			lines.print(h, false)
		} else {
			for _, e := range h.GetEntries() {
				if err := pr.print(w, e, nil); err != nil {
					return err
				}
			}
		}
		q.After = max(q.GetAfter(), h.GetLast())
		if !pause(ctx, followEvery) {
			return nil
		}
	}
}

func containerEvents(ctx context.Context, pr *printer, c *client.Client, w io.Writer) error {
	stream, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	for {
		ev, err := stream.Recv()
		if ctx.Err() != nil || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if pr.format == "table" {
			fmt.Fprintln(w, eventLine(ev))
		} else if err := pr.print(w, ev, nil); err != nil {
			return err
		}
	}
}

func eventLine(ev *runtimeapi.ContainerEventResponse) string {
	m := ev.GetPodSandboxStatus().GetMetadata()
	name, end := "(sandbox)", ""
	for _, st := range ev.GetContainersStatuses() {
		if st.GetId() != ev.GetContainerId() {
			continue
		}
		name = st.GetMetadata().GetName()
		if ev.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
			end = fmt.Sprintf("  code %d %s", st.GetExitCode(), st.GetReason())
		}
	}
	return fmt.Sprintf("%s  %-8s %s  %s/%s/%s%s",
		time.Unix(0, ev.GetCreatedAt()).Format("2006-01-02 15:04:05.000000 -07:00"),
		strings.TrimSuffix(word(ev.GetContainerEventType().String()), "_EVENT"),
		short(ev.GetContainerId()),
		m.GetNamespace(),
		m.GetName(),
		name,
		end)
}
