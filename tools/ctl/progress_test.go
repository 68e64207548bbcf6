// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	berthv1 "berth/api/berth/v1"
)

func TestPullsAndImportsAreShownInBytes(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		p          *berthv1.Progress
		pull, load stage
	}{
		{},
		{p: &berthv1.Progress{}}, // the manifest has not come
		{
			p:    &berthv1.Progress{Total: 40 * mib, Fetched: 10 * mib, Blobs: 5, Complete: 2},
			pull: stage{10 * mib, 40 * mib, "10 MiB of 40 MiB (25%), 2 of 5 blobs are complete"},
			load: stage{10 * mib, 40 * mib, "10 MiB of 40 MiB (25%)"},
		},
		{
			p:    &berthv1.Progress{Total: 40 * mib, Fetched: 40 * mib, Blobs: 5, Complete: 5},
			pull: stage{40 * mib, 40 * mib, "40 MiB are here, unpacking"},
			load: stage{40 * mib, 40 * mib, "40 MiB are read, unpacking"},
		},
	} {
		if got := pulled(tt.p); got != tt.pull {
			t.Errorf("a pull at %+v: %+v, want %+v", tt.p, got, tt.pull)
		}
		if got := imported(tt.p); got != tt.load {
			t.Errorf("an import at %+v: %+v, want %+v", tt.p, got, tt.load)
		}
	}
}

func TestABarFitsTheTerminal(t *testing.T) {
	for _, tt := range []struct {
		columns     int
		done, total int64
		want        string
	}{
		{0, 1, 2, "pulling app: half ... 3s"}, // the width is not known
		{24, 1, 2, "pulling app: half ... 3"},
		{25, 1, 2, "pulling app: half ... 3s"},
		{35, 1, 2, "pulling app: half ... 3s"},
		{36, 1, 2, "[####....] pulling app: half ... 3s"},
		{37, 1, 2, "[####.....] pulling app: half ... 3s"},
		{36, 0, 2, "[........] pulling app: half ... 3s"},
		{36, 3, 2, "[########] pulling app: half ... 3s"},
		{36, 0, 0, "pulling app: half ... 3s"}, // the bytes are not known
		{999, 1 << 60, 1 << 61, "[" + strings.Repeat("#", 20) + strings.Repeat(".", 20) + "] pulling app: half ... 3s"},
	} {
		got := line(tt.columns, "pulling app", stage{tt.done, tt.total, "half"}, 3)
		if got != tt.want || tt.columns > 0 && len(got) >= tt.columns {
			t.Errorf("%d columns, %d of %d: %q, want %q", tt.columns, tt.done, tt.total, got, tt.want)
		}
	}
	if got := line(5, "größer", stage{}, 0); got != "größ" {
		t.Errorf("letters of several bytes: %q", got)
	}
}

func TestTheLineOfAPullFitsTheTerminalAndIsCleared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		asked := 0
		done := show(&out, func() int { return 20 }, "pulling app", func(ctx context.Context) stage {
			if asked++; asked == 1 {
				return stage{text: "1 of 2"}
			}
			<-ctx.Done() // a service that does not answer
			return stage{}
		})
		time.Sleep(time.Second)
		done()
		const want = "\r\x1b[Kpulling app: 1 of 2\r\x1b[K"
		if got := out.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
