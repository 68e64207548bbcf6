// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
)

func (a *app) eventsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "events", Short: "Print container events as they happen", Args: cobra.NoArgs}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
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
				if a.output == "table" {
					fmt.Fprintln(cmd.OutOrStdout(), eventLine(ev))
				} else if err := a.print(cmd.OutOrStdout(), ev, nil); err != nil {
					return err
				}
			}
		})
	}
	return cmd
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
		time.Unix(0, ev.GetCreatedAt()).Format("15:04:05.000000"),
		strings.TrimSuffix(word(ev.GetContainerEventType().String()), "_EVENT"),
		short(ev.GetContainerId()),
		m.GetNamespace(),
		m.GetName(),
		name,
		end)
}
