// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"berth/internal/serve/cri"
)

func (a *app) dfCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "df",
		Short: "Show what takes the space on the disk",
		Long: "Show what images, layers, logs and berth's own files take of the disk, and how much of it `berth images prune` gives\n" +
			"back, except for images that came just now.",
		Args: cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			d, err := c.Disk(ctx)
			if err != nil {
				return err
			}
			return a.print(cmd.OutOrStdout(), d, func(w *tabwriter.Writer) {
				fmt.Fprintln(w, "WHAT\tCOUNT\tSIZE\tRECLAIMABLE\tWHAT IT IS")
				for _, s := range d.Shares {
					took := amount(s.Bytes)
					if s.Unknown > 0 {
						took = fmt.Sprintf("%s and %d not measured", took, s.Unknown)
					}
					fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", s.What, s.Count, took, amount(s.Reclaimable), s.Note)
				}
				if d.Path != "" && d.Total > 0 {
					fmt.Fprintf(w, "%s: %s of %s are free\n", d.Path, size(d.Free), size(d.Total))
				}
			})
		})
	}
	return cmd
}
