// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
)

func pullsCommand(svc *service, pr *printer) *cobra.Command {
	var watch bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "pulls",
		Short: "List the images that are being pulled or imported, how far, and who waits",
		Long: "List the images that are on their way to this node, whoever asked for them: how many of their bytes and of their parts\n" +
			"(blobs: layers, and what describes the image) are here, since when, and which pods wait.",
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "list them again and again, until Ctrl-C")
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "time between two looks of --watch")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if interval < 100*time.Millisecond {
			return fmt.Errorf("--interval %s is less than 100ms", interval)
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			if !watch {
				return printPulls(ctx, pr, cmd.OutOrStdout(), c)
			}
			show := func() error { return printPulls(ctx, pr, cmd.OutOrStdout(), c) }
			if out, ok := raw(cmd.OutOrStdout()).(*os.File); ok && pr.format == "table" && term.IsTerminal(descriptor(out)) {
				fmt.Fprint(out, enterScreen)
				defer fmt.Fprint(out, leaveScreen)
				show = func() error { return redraw(ctx, pr, out, c) }
			}
			for {
				if err := show(); err != nil {
					if ctx.Err() != nil {
						return nil // Ctrl-C is how it ends
					}
					return err
				}
				if !pause(ctx, interval) {
					return nil
				}
			}
		})
	}
	return cmd
}

// redraw replaces the content of a terminal by the list of transfers.
func redraw(ctx context.Context, pr *printer, w io.Writer, c *client.Client) error {
	var b bytes.Buffer
	if err := printPulls(ctx, pr, &b, c); err != nil {
		return err
	}
	text := strings.ReplaceAll(Visible(b.String()), "\n", clearLine+"\r\n")
	_, err := fmt.Fprint(w, homeCursor, text, clearRest)
	return err
}

func printPulls(ctx context.Context, pr *printer, out io.Writer, c *client.Client) error {
	resp, err := c.Node.Transfers(ctx, &berthv1.TransfersRequest{})
	if err != nil {
		return err
	}
	return pr.print(out, documents(resp.GetTransfers()), func(w *tabwriter.Writer) {
		fmt.Fprintln(w, "IMAGE\tKIND\tSTATE\tHERE\tBLOBS\tBEGAN\tFOR")
		for _, t := range resp.GetTransfers() {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
				oneLine(t.GetImage()),
				t.GetKind(),
				transferState(t),
				here(t),
				blobs(t),
				age(t.GetSince().AsTime().UnixNano()),
				waiters(t.GetWaiters()))
		}
	})
}

// transferState describes the activity of a transfer, for a table.
func transferState(t *berthv1.Transfer) string {
	switch {
	case t.GetArchive() != "":
		return "waits for " + oneLine(t.GetArchive())
	case t.GetUnpacking() > 0:
		return fmt.Sprintf("%s, %d unpacking", t.GetState(), t.GetUnpacking())
	}
	return t.GetState()
}

// here describes how much of a transfer is on the node.
func here(t *berthv1.Transfer) string {
	switch {
	case t.GetProblem() != "":
		return oneLine(t.GetProblem())
	case t.GetTotal() <= 0:
		return "-"
	}
	return share(t.GetFetched(), t.GetTotal())
}

func blobs(t *berthv1.Transfer) string {
	if t.GetBlobs() == 0 {
		return "-"
	}
	return fmt.Sprintf("%d of %d", t.GetComplete(), t.GetBlobs())
}

// waiters names the waiting pods. A client that is not a kubelet does not name the pod for which it
// pulls.
func waiters(who []string) string {
	var known []string
	unnamed := 0
	for _, w := range who {
		if w == "" {
			unnamed++
		} else {
			known = append(known, w)
		}
	}
	switch {
	case unnamed == 1:
		known = append(known, "a client")
	case unnamed > 1:
		known = append(known, fmt.Sprintf("%d clients", unnamed))
	}
	return few(known)
}
