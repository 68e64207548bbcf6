// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
)

func dfCommand(svc *service, pr *printer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "df",
		Short: "Show what takes the space on the disk",
		Long: "Show what images, layers, logs and berth's own files take of the disk, and how much of it `berth images prune` gives\n" +
			"back, except for images that came just now.",
		Args: cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			d, err := c.Node.Disk(ctx, &berthv1.DiskRequest{})
			if err != nil {
				return err
			}
			return pr.print(cmd.OutOrStdout(), items{document{d}, "shares"}, func(w *tabwriter.Writer) {
				fmt.Fprintln(w, "WHAT\tCOUNT\tSIZE\tRECLAIMABLE\tWHAT IT IS")
				for _, s := range d.GetShares() {
					took := amount(s.GetBytes())
					if s.GetUnknown() > 0 {
						took = fmt.Sprintf("%s and %d not measured", took, s.GetUnknown())
					}
					fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", s.GetWhat(), s.GetCount(), took, amount(s.GetReclaimable()), s.GetNote())
				}
				if d.GetPath() != "" && d.GetTotal() > 0 {
					fmt.Fprintf(w, "%s: %s of %s are free\n", d.GetPath(), size(d.GetFree()), size(d.GetTotal()))
				}
			})
		})
	}
	return cmd
}
