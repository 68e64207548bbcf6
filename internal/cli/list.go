// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
)

func (a *app) psCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{Use: "ps", Short: "List containers", Args: cobra.NoArgs}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also list containers that are not running")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			f := &runtimeapi.ContainerFilter{}
			if !all {
				f.State = &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}
			}
			list, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: f})
			if err != nil {
				return err
			}
			pods, err := podNames(ctx, c)
			if err != nil {
				return err
			}
			return a.print(cmd.OutOrStdout(), list, func(w *tabwriter.Writer) {
				fmt.Fprintln(w, "CONTAINER\tNAME\tPOD\tIMAGE\tSTATE\tCREATED\tEXIT")
				for _, ct := range list.GetContainers() {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
						short(ct.GetId()),
						ct.GetMetadata().GetName(),
						pods[ct.GetPodSandboxId()],
						ct.GetImage().GetImage(),
						word(ct.GetState().String()),
						age(ct.GetCreatedAt()),
						exit(ctx, c, ct))
				}
			})
		})
	}
	return cmd
}

// exit describes how a container ended, or how many OOM kills one that runs has survived; "" if there
// is nothing to say, or if its status cannot be read.
func exit(ctx context.Context, c *cri.Client, ct *runtimeapi.Container) string {
	resp, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: ct.GetId()})
	if err != nil {
		return ""
	}
	st := resp.GetStatus()
	if st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
		survived, _, _ := strings.Cut(st.GetMessage(), ",")
		return survived
	}
	return fmt.Sprintf("%d %s, %s", st.GetExitCode(), st.GetReason(), age(st.GetFinishedAt()))
}

// word is a CRI state without its prefix.
func word(s string) string {
	_, w, _ := strings.Cut(s, "_")
	return w
}

// podNames returns NAMESPACE/NAME of all pods by ID.
func podNames(ctx context.Context, c *cri.Client) (map[string]string, error) {
	list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	names := map[string]string{}
	for _, p := range list.GetItems() {
		names[p.GetId()] = p.GetMetadata().GetNamespace() + "/" + p.GetMetadata().GetName()
	}
	return names, err
}

func (a *app) podsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "pods", Short: "List pods", Args: cobra.NoArgs}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
			if err != nil {
				return err
			}
			return a.print(cmd.OutOrStdout(), list, func(w *tabwriter.Writer) {
				fmt.Fprintln(w, "POD\tNAMESPACE\tNAME\tSTATE\tCREATED\tRUNTIME\tIP")
				for _, p := range list.GetItems() {
					ip := ""
					if st, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.GetId()}); err == nil {
						ip = st.GetStatus().GetNetwork().GetIp()
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
						short(p.GetId()),
						p.GetMetadata().GetNamespace(),
						p.GetMetadata().GetName(),
						word(p.GetState().String()),
						age(p.GetCreatedAt()),
						p.GetRuntimeHandler(),
						ip)
				}
			})
		})
	}
	return cmd
}
