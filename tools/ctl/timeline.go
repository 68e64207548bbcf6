// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/history/recorder"
	"berth/internal/serve/cri"
)

func (a *app) timelineCommand() *cobra.Command {
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

		ValidArgsFunction: a.complete(pods, containers, one),
	}
	cmd.Flags().BoolVar(&attempts, "attempts", false, "go back to all that had the same name")
	cmd.Flags().BoolVar(&node, "node", false, "show everything that happened on the node")
	cmd.Flags().DurationVar(&since, "since", 0, "leave out what is older, such as 2h")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on printing what happens")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			q := recorder.Query{Attempts: attempts}
			if since > 0 {
				q.Since = time.Now().Add(-since)
			}
			if !node {
				q.Of = args[0] // the service remembers the IDs and names of removed objects
				if o, err := resolve(ctx, c, q.Of, true, true); err == nil {
					q.Of = o.id
				}
			}
			return a.timeline(ctx, c, cmd.OutOrStdout(), q, follow)
		})
	}
	return cmd
}

// followEvery is how often new entries are asked for.
const followEvery = 500 * time.Millisecond

// timeline prints an answer, and with follow those that come after it, until ctx ends.
func (a *app) timeline(ctx context.Context, c *cri.Client, w io.Writer, q recorder.Query, follow bool) error {
	lines := timelineLines{w: w, node: q.Of == "", day: time.Now().Format(time.DateOnly)}
	for first := true; ; first = false {
		raw, err := c.History(ctx, q)
		if err != nil {
			if follow && ctx.Err() != nil {
				return nil
			}
			return err
		}
		var h cri.History
		if err := json.Unmarshal(raw, &h); err != nil {
			return err
		}
		switch {
		case a.output != "table":
			if first || len(h.Entries) > 0 {
				err = a.document(w, raw)
			}
		default:
			lines.print(h, first)
		}
		if err != nil || !follow {
			if a.output == "table" && !lines.node {
				lines.now(h)
			}
			return err
		}
		q.Of, q.After = cmp.Or(h.ID, q.Of), max(q.After, h.Last)
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

func (l *timelineLines) print(h cri.History, first bool) {
	if first && h.ID != "" {
		fmt.Fprintln(l.w, h.ID)
	}
	for _, e := range h.Entries {
		if day := e.At.Local().Format(time.DateOnly); day != l.day {
			l.day = day
			fmt.Fprintln(l.w, day)
		}
		since := time.Duration(0)
		if !l.last.IsZero() {
			since = e.At.Sub(l.last)
		}
		l.last = e.At
		fmt.Fprintf(l.w, "%s  %10s  ", e.At.Local().Format("15:04:05.000000"), "+"+since.Round(time.Microsecond).String())
		if about := l.about(h, e); about != "" {
			fmt.Fprintf(l.w, "%s: ", about)
		}
		fmt.Fprint(l.w, e.What)
		if e.Detail != "" {
			fmt.Fprintf(l.w, "  (%s)", oneLine(e.Detail))
		}
		if e.Err != "" {
			fmt.Fprintf(l.w, "  ERROR %s", oneLine(e.Err))
		}
		fmt.Fprintln(l.w)
	}
}

// about names the object of an entry if it differs from the requested one: a container of the pod
// by its name, an object of the node by its whole name, and one without a name by its ID.
func (l *timelineLines) about(h cri.History, e recorder.Entry) string {
	switch {
	case e.ID == h.ID:
		return ""
	case l.node:
		return cmp.Or(e.Name, short(e.ID))
	case e.Name == "":
		return short(e.ID)
	case e.Name == h.Name:
		return "attempt " + short(e.ID)
	}
	return strings.TrimPrefix(e.Name, h.Name+"/")
}

// now prints the pending work.
func (l *timelineLines) now(h cri.History) {
	if h.Lane != nil {
		fmt.Fprintln(l.w, "now: "+strings.ReplaceAll(explainLane(*h.Lane), h.ID, short(h.ID)))
	} else {
		fmt.Fprintln(l.w, "now: nothing left to do")
	}
}
