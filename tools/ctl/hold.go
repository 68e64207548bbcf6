// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"

	"github.com/spf13/cobra"
)

// Hidden returns a command that berth itself starts, with one argument.
func Hidden(name, short string, run func(ctx context.Context, arg string) error) *cobra.Command {
	return &cobra.Command{
		Use:    name + " DIR",
		Short:  short,
		Hidden: true,
		Args:   cobra.ExactArgs(1),

		ValidArgsFunction: cobra.NoFileCompletions,

		RunE: func(cmd *cobra.Command, args []string) error { return run(cmd.Context(), args[0]) },
	}
}
