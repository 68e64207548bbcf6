// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
)

// stage is how far something has come.
type stage struct {
	done, total int64  // bytes; total is 0 if they are not known
	text        string // for a person; "" for none
}

// progress shows on a terminal that something is going on, until the function that it returns is
// called.
func progress(what string) (done func()) {
	return showOnTerminal(what, func(context.Context) stage { return stage{} })
}

// pullProgress shows on a terminal how much of an image was pulled, until the function that it
// returns is called. If a service cannot tell, such as an earlier version, only the bytes are
// missing.
func pullProgress(ctx context.Context, c *client.Client, ref string) (done func()) {
	return showOnTerminal("pulling "+ref, asked(ctx, func(ctx context.Context) stage {
		resp, _ := c.Node.PullProgress(ctx, &berthv1.PullProgressRequest{Image: ref})
		return pulled(resp.GetProgress())
	}))
}

// importProgress is pullProgress for an archive.
func importProgress(ctx context.Context, c *client.Client, what, path string) (done func()) {
	return showOnTerminal(what, asked(ctx, func(ctx context.Context) stage {
		resp, _ := c.Node.ImportProgress(ctx, &berthv1.ImportProgressRequest{Path: path})
		return imported(resp.GetProgress())
	}))
}

func showOnTerminal(what string, ask func(context.Context) stage) (done func()) {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return func() {}
	}
	return show(os.Stderr, columns, what, ask)
}

// columns is the width of the terminal, or 0 if it is not known.
func columns() int {
	n, _, err := term.GetSize(int(os.Stderr.Fd()))
	if err != nil {
		return 0
	}
	return n
}

// asked is a question that ends with the command, too.
func asked(ctx context.Context, ask func(context.Context) stage) func(context.Context) stage {
	return func(stop context.Context) stage {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(stop, cancel)()
		return ask(ctx)
	}
}

func pulled(p *berthv1.Progress) stage {
	switch {
	case p.GetTotal() <= 0:
		return stage{}
	case p.GetFetched() >= p.GetTotal():
		return stage{p.GetTotal(), p.GetTotal(), amount(p.GetTotal()) + " are here, unpacking"}
	}
	return stage{p.GetFetched(), p.GetTotal(), fmt.Sprintf("%s, %d of %d blobs are complete", share(p.GetFetched(), p.GetTotal()), p.GetComplete(), p.GetBlobs())}
}

func imported(p *berthv1.Progress) stage {
	switch {
	case p.GetTotal() <= 0:
		return stage{}
	case p.GetFetched() >= p.GetTotal():
		return stage{p.GetTotal(), p.GetTotal(), amount(p.GetTotal()) + " are read, unpacking"}
	}
	return stage{p.GetFetched(), p.GetTotal(), share(p.GetFetched(), p.GetTotal())}
}

// share describes how many of the bytes are here.
func share(fetched, total int64) string {
	return fmt.Sprintf("%s of %s (%d%%)", amount(fetched), amount(total), fetched*100/total)
}

// The narrowest useful bar, and the widest.
const (
	leastBar = 8
	mostBar  = 40
)

// line is the line to show on a terminal with so many columns; 0 if unknown. There is a bar if it
// fits beside the text. A terminal that is too narrow for the text shows its beginning.
func line(columns int, what string, s stage, seconds int) string {
	text := what
	if s.text != "" {
		text += ": " + s.text
	}
	text = Visible(text)
	text += fmt.Sprintf(" ... %ds", seconds)
	if columns <= 0 {
		return text
	}
	// the last column stays free, or the terminal wraps
	room := columns - 1 - utf8.RuneCountInString(text)
	if room < 0 {
		return string([]rune(text)[:columns-1])
	}
	width := min(room-len("[] "), mostBar)
	if s.total <= 0 || width < leastBar {
		return text
	}
	full := int(float64(width) * float64(min(max(s.done, 0), s.total)) / float64(s.total))
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "] " + text
}

// show keeps one line of a terminal up to date: the activity, its progress from ask, and the time
// since its beginning. It ends, and clears the line, when the function that it returns is called,
// which ends the context of ask, too.
func show(w io.Writer, columns func() int, what string, ask func(ctx context.Context) stage) (done func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		began := time.Now()
		t := time.NewTicker(200 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				fmt.Fprint(w, "\r\x1b[K")
				return
			case <-t.C:
			}
			s := ask(ctx)
			if ctx.Err() != nil {
				continue
			}
			fmt.Fprint(w, "\r\x1b[K", line(columns(), what, s, int(time.Since(began).Seconds())))
		}
	})
	return func() { cancel(); wg.Wait() }
}
