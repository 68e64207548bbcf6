// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/checkpoint"
	"berth/internal/cri"
)

func (a *app) checkpointCommand() *cobra.Command {
	var timeout int64
	cmd := &cobra.Command{
		Use:   "checkpoint NAME|ID FILE",
		Short: "Write the state of a running container to an archive",
		Long: "Write the memory and the files of a running container to a new archive, which holds every secret that the\n" +
			"container has. The container goes on. It needs CRIU on the node.",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.complete(containers, running, one),
	}
	cmd.Flags().Int64VarP(&timeout, "timeout", "t", 0, fmt.Sprintf("seconds after which the checkpoint is given up; 0: %d", checkpoint.DefaultTimeout/time.Second))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, err := filepath.Abs(args[1]) // the service has another working directory
		if err != nil {
			return err
		}
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			o, err := resolve(ctx, c, args[0], false, true)
			if err != nil {
				return err
			}
			defer progress("checkpointing " + o.name)()
			_, err = c.CheckpointContainer(ctx, &runtimeapi.CheckpointContainerRequest{ContainerId: o.id, Location: path, Timeout: timeout})
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), path)
			return nil
		})
	}
	return cmd
}
