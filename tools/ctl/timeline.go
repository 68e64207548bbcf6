// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
)

func timelineCommand(svc *service, pr *printer) *cobra.Command {
	var attempts, node, follow bool
	var since time.Duration
	cmd := &cobra.Command{
		Use:   "timeline [NAME|ID]",
		Short: "Show what happened to a container or pod, or on the node, and what it is waiting for",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 || node == (len(args) == 1) {
				return errors.New("name one container or pod, or give --node")
			}
			return nil
		},

		ValidArgsFunction: svc.complete(pods, containers, one),
	}
	cmd.Flags().BoolVar(&attempts, "attempts", false, "go back to all that had the same name")
	cmd.Flags().BoolVar(&node, "node", false, "show everything that happened on the node")
	cmd.Flags().DurationVar(&since, "since", 0, "leave out what is older, such as 2h")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on printing what happens")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if since < 0 {
			return fmt.Errorf("--since %s is negative", since)
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			q := &berthv1.TimelineRequest{Attempts: attempts, Node: node}
			if since > 0 {
				q.Since = timestamppb.New(time.Now().Add(-since))
			}
			if !node {
				q.Id = args[0] // the service remembers the IDs and names of removed objects
				if o, err := resolve(ctx, c, q.GetId(), true, true); err == nil {
					q.Id = o.id
				}
			}
			return printTimeline(ctx, pr, c, cmd.OutOrStdout(), q, follow)
		})
	}
	return cmd
}

// followEvery is how often new entries are asked for.
const followEvery = 500 * time.Millisecond

// timeline prints an answer, and with follow those that come after it, until ctx ends.
func printTimeline(ctx context.Context, pr *printer, c *client.Client, w io.Writer, q *berthv1.TimelineRequest, follow bool) error {
	lines := timelineLines{w: w, node: q.GetNode()}
	for first := true; ; first = false {
		h, err := c.Timeline(ctx, q)
		if err != nil {
			if follow && ctx.Err() != nil {
				return nil
			}
			return err
		}
		switch {
		case pr.format != "table":
			if first || len(h.GetEntries()) > 0 {
				err = pr.print(w, items{document{h}, "entries"}, nil)
			}
		default:
			lines.print(h, first)
		}
		if err != nil || !follow {
			if pr.format == "table" && !lines.node {
				lines.now(h)
			}
			return err
		}
		q.Id, q.After = cmp.Or(h.GetId(), q.GetId()), max(q.GetAfter(), h.GetLast())
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followEvery):
		}
	}
}

// timelineLines prints entries, a line for each.
type timelineLines struct {
	w    io.Writer
	node bool
	day  string    // of the line before
	last time.Time // the instant of the line before
}

func (l *timelineLines) print(h *berthv1.TimelineResponse, first bool) {
	if first && h.GetId() != "" {
		fmt.Fprintln(l.w, h.GetId())
	}
	for _, e := range h.GetEntries() {
		at := e.GetAt().AsTime()
		if day := at.Local().Format(time.DateOnly); day != l.day {
			l.day = day
			fmt.Fprintln(l.w, at.Local().Format("2006-01-02 -07:00 MST"))
		}
		since := time.Duration(0)
		if !l.last.IsZero() {
			since = at.Sub(l.last)
		}
		l.last = at
		fmt.Fprintf(l.w, "%s  %10s  ", at.Local().Format("15:04:05.000000"), "+"+since.Round(time.Microsecond).String())
		if about := l.about(h, e); about != "" {
			fmt.Fprintf(l.w, "%s: ", about)
		}
		fmt.Fprint(l.w, e.GetWhat())
		if e.GetDetail() != "" {
			fmt.Fprintf(l.w, "  (%s)", oneLine(e.GetDetail()))
		}
		if e.GetError() != "" {
			fmt.Fprintf(l.w, "  ERROR %s", oneLine(e.GetError()))
		}
		fmt.Fprintln(l.w)
	}
}

// about names the object of an entry if it differs from the requested one: a container of the pod
// by its name, an object of the node by its whole name, and one without a name by its ID.
func (l *timelineLines) about(h *berthv1.TimelineResponse, e *berthv1.Entry) string {
	switch {
	case e.GetId() == h.GetId():
		return ""
	case l.node:
		return cmp.Or(e.GetName(), short(e.GetId()))
	case e.GetName() == "":
		return short(e.GetId())
	case e.GetName() == h.GetName():
		return "attempt " + short(e.GetId())
	}
	return strings.TrimPrefix(e.GetName(), h.GetName()+"/")
}

// now prints what is under way.
func (l *timelineLines) now(h *berthv1.TimelineResponse) {
	under := h.GetUnderWay()
	if len(under) == 0 {
		under = []string{"nothing is under way"}
		if h.GetLane() != nil { // of an earlier service
			under = []string{explainLane(h.GetLane())}
		}
	}
	for _, s := range under {
		fmt.Fprintln(l.w, "now: "+strings.ReplaceAll(oneLine(s), h.GetId(), short(h.GetId())))
	}
}
