// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"berth/tools/demo"
)

func demoCommand() *cobra.Command {
	var o demo.Options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a real pod in a berth of its own, and show how its containers end",
		Long: "Run a second berth in a temporary directory, and in it a pod whose containers end in different ways; show how they end, " +
			"and remove everything. It needs root, and neither a network nor a registry. Another user runs it by `berth rootless demo`.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			o.Berth, o.Image = exe, cmp.Or(o.Image, demo.Image(exe))
			o.Out, o.Err = cmd.OutOrStdout(), cmd.ErrOrStderr()
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return demo.Run(ctx, o)
		},
	}
	cmd.Flags().StringVar(&o.Image, "image", "", "archive with the image "+demo.Name+" (default: the one that comes with berth)")
	cmd.Flags().BoolVarP(&o.Verbose, "verbose", "v", false, "also print the log of the berth that is started")
	return cmd
}
