// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
)

// whyLines is how many of the last lines of a log are shown.
const whyLines = 3

func whyCommand(svc *service, pr *printer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "why NAME|ID",
		Short: "Say why a pod or a container ended, or does not run",
		Long: "Say why a pod or a container ended, or does not run: who asked for it or what the kernel said, what it wrote last, how often\n" +
			"that has happened, and what is under way now: what it waits for, since when, for whom and until when. Of what was removed, it says what the timeline has.",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: svc.complete(pods, containers, one),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			of := args[0] // the service remembers the IDs and names of removed objects
			if o, err := resolve(ctx, c, of, true, true); err == nil {
				of = o.id
			}
			r, err := c.Node.Why(ctx, &berthv1.WhyRequest{Id: of})
			if err != nil {
				return err
			}
			return pr.print(cmd.OutOrStdout(), r, func(w *tabwriter.Writer) { printWhy(w, r) })
		})
	}
	return cmd
}

// wholeID matches the ID of a sandbox, a container or an image.
var wholeID = regexp.MustCompile(`\b[0-9a-f]{64}\b`)

// readable cuts the IDs in a sentence to their beginnings.
func readable(s string) string { return wholeID.ReplaceAllStringFunc(oneLine(s), short) }

// telling matches the lines of a log that tell most of a failure.
var telling = regexp.MustCompile(`(?i)error|fatal|panic|exception|denied|refused|no space|not found|cannot|failed|killed`)

// tellingLines returns at most n lines of a log: the last ones, and in place of the first of them
// the last line before them that tells of a failure, if none of them does.
func tellingLines(all []string, n int) []string {
	last := all[max(0, len(all)-n):]
	if len(all) <= n || slices.ContainsFunc(last, telling.MatchString) {
		return last
	}
	for _, l := range slices.Backward(all[:len(all)-n]) {
		if telling.MatchString(l) {
			return append([]string{l}, last[1:]...)
		}
	}
	return last
}

func printWhy(w io.Writer, r *berthv1.WhyResponse) {
	fmt.Fprintln(w, readable(r.GetWhat()))
	if r.GetWhy() != "" {
		fmt.Fprintln(w, readable(r.GetWhy()))
	}
	if lines := tellingLines(r.GetWrote(), whyLines); len(lines) > 0 {
		fmt.Fprintln(w, "It wrote last:")
		for _, l := range lines {
			fmt.Fprintln(w, "    "+oneLine(l))
		}
	}
	if r.GetBefore() != "" {
		fmt.Fprintln(w, readable(r.GetBefore()))
	}
	if r.GetNow() != "" {
		fmt.Fprintln(w, "Now: "+readable(r.GetNow())+".")
	}
	if r.GetLane() != nil && len(r.GetUnderWay()) == 0 { // of an earlier service
		fmt.Fprintln(w, "Waiting: "+strings.ReplaceAll(explainLane(r.GetLane()), r.GetId(), short(r.GetId())))
	}
}
