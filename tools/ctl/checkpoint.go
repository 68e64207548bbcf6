// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	"berth/internal/serve/checkpoint"
)

func checkpointCommand(svc *service) *cobra.Command {
	var timeout int64
	var pod bool
	cmd := &cobra.Command{
		Use:   "checkpoint NAME|ID FILE",
		Short: "Write the state of a running container or pod to an archive",
		Long: "Write the memory and the files of a running container to a new archive, which holds every secret that the\n" +
			"container has. With --pod, write those of all running containers of a pod, all of the same instant, to a\n" +
			"new directory. The containers go on. It needs CRIU on the node. A container whose\n" +
			"image is the path of an archive, or an image that holds one, is restored from it.",
		Args: cobra.ExactArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]cobra.Completion, cobra.ShellCompDirective) {
			what := containers
			if pod {
				what = pods
			}
			return svc.complete(what, running, one)(cmd, args, begin)
		},
	}
	cmd.Flags().Int64VarP(&timeout, "timeout", "t", 0, fmt.Sprintf("seconds after which the checkpoint is given up; 0: %d", checkpoint.DefaultTimeout/time.Second))
	cmd.Flags().BoolVar(&pod, "pod", false, "checkpoint a pod, into a new directory")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, err := absolute(args[1])
		if err != nil {
			return err
		}
		if timeout < 0 {
			return fmt.Errorf("--timeout %d is negative", timeout)
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			o, err := resolve(ctx, c, args[0], pod, !pod)
			if err != nil {
				return err
			}
			defer progress("checkpointing " + o.name)()
			if pod {
				err = checkpointPod(ctx, c, o.id, path, time.Duration(min(timeout, math.MaxInt32))*time.Second)
			} else {
				_, err = c.CheckpointContainer(ctx, &runtimeapi.CheckpointContainerRequest{ContainerId: o.id, Location: path, Timeout: timeout})
			}
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), path)
			return nil
		})
	}
	return cmd
}

// checkpointPod makes a directory with the checkpoint of the containers of a pod that run.
func checkpointPod(ctx context.Context, c *client.Client, id, dir string, timeout time.Duration) error {
	if timeout == 0 {
		timeout = checkpoint.DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	list, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		PodSandboxId: id,
		State:        &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return err
	}
	req := &runtimeapi.CheckpointPodRequest{PodSandboxId: id, OutputPath: dir}
	for _, ct := range list.GetContainers() {
		req.ContainerIds = append(req.ContainerIds, ct.GetId())
	}
	if len(req.GetContainerIds()) == 0 {
		return errors.New("no container of the pod runs")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if _, err := c.CheckpointPod(ctx, req); err != nil {
		return errors.Join(err, os.Remove(dir)) // the service has left nothing in it
	}
	return nil
}

func restoreCommand(svc *service) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "restore DIR",
		Short: "Run a pod from its checkpoint",
		Long: "Make the pod of a checkpoint that \"berth checkpoint --pod\" has written once more, as it was asked for, and let\n" +
			"its processes go on. The pod must not be there any more. It needs CRIU on the node.",
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
	}
	cmd.Flags().DurationVarP(&timeout, "timeout", "t", 5*time.Minute, "how long to wait until the pod runs")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, err := absolute(args[0])
		if err != nil {
			return err
		}
		req, err := checkpoint.ReadPod(path)
		if err != nil {
			return err
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			defer progress("restoring " + req.GetConfig().GetMetadata().GetName())()
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			made, err := c.RestorePod(ctx, req)
			if err != nil {
				return err
			}
			for _, ct := range made.GetRestoredContainers() {
				if _, err := c.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: ct.GetContainerId()}); err != nil {
					return fmt.Errorf("%w; the pod stays: \"berth inspect %s\" shows it, \"berth rm -f %s\" removes it",
						err, short(ct.GetContainerId()), req.GetConfig().GetMetadata().GetName())
				}
			}
			fmt.Fprintln(cmd.OutOrStdout(), made.GetPodSandboxId())
			return nil
		})
	}
	return cmd
}
