// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"berth/internal/cri"
	"berth/internal/image"
)

// progress shows on a terminal that something is going on, until the function that it returns is
// called.
func progress(what string) (done func()) {
	if !term.IsTerminal(int(os.Stderr.Fd())) { //nolint:gosec // a descriptor
		return func() {}
	}
	return show(os.Stderr, columns, what, func(context.Context) string { return "" })
}

// pullProgress shows on a terminal how much of an image was pulled, until the function that it
// returns is called. A service that cannot say it, as an earlier version, costs the bytes alone.
func pullProgress(ctx context.Context, c *cri.Client, ref string) (done func()) {
	if !term.IsTerminal(int(os.Stderr.Fd())) { //nolint:gosec // a descriptor
		return func() {}
	}
	return show(os.Stderr, columns, "pulling "+ref, pulled(ctx, c, ref))
}

// columns is the width of the terminal, or 0 if it is not known.
func columns() int {
	n, _, err := term.GetSize(int(os.Stderr.Fd())) //nolint:gosec // a descriptor
	if err != nil {
		return 0
	}
	return n
}

// pulled asks how much of an image was pulled.
func pulled(ctx context.Context, c *cri.Client, ref string) func(context.Context) string {
	return func(stop context.Context) string {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(stop, cancel)()
		p, err := c.PullProgress(ctx, ref)
		if err != nil {
			return ""
		}
		return howFar(p)
	}
}

// howFar says how far a pull has come; "" if that is not known.
func howFar(p *image.Progress) string {
	switch {
	case p == nil || p.Total <= 0:
		return ""
	case p.Fetched >= p.Total:
		return fmt.Sprintf("%s are here, unpacking", size(uint64(p.Total)))
	default:
		return fmt.Sprintf("%s of %s (%d%%), %d of %d blobs are complete",
			size(uint64(max(p.Fetched, 0))), size(uint64(p.Total)), p.Fetched*100/p.Total, p.Complete, p.Blobs)
	}
}

// show keeps one line of a terminal: what is going on, what ask says about it, and since when. A
// terminal that is too narrow for all of that shows its beginning and no second line. show ends, and clears the line, when the function that it returns is called, which ends the context of
// ask, too.
func show(w io.Writer, columns func() int, what string, ask func(ctx context.Context) string) (done func()) {
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
			detail := ask(ctx)
			if ctx.Err() != nil {
				continue
			}
			if detail != "" {
				detail = ": " + detail
			}
			line := fmt.Sprintf("%s%s ... %ds", what, detail, int(time.Since(began).Seconds()))
			if n := columns(); n > 0 && len(line) >= n {
				line = line[:n-1] // ASCII
			}
			fmt.Fprint(w, "\r\x1b[K", line)
		}
	})
	return func() { cancel(); wg.Wait() }
}
