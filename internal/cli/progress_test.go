// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/image"
)

func TestAPullIsShownInBytes(t *testing.T) {
	for _, tt := range []struct {
		p    *image.Progress
		want string
	}{
		{nil, ""},
		{&image.Progress{}, ""}, // the manifest has not come
		{&image.Progress{Total: 40 << 20, Fetched: 10 << 20, Blobs: 5, Complete: 2}, "10 MiB of 40 MiB (25%), 2 of 5 blobs are complete"},
		{&image.Progress{Total: 40 << 20, Fetched: 40 << 20, Blobs: 5, Complete: 5}, "40 MiB are here, unpacking"},
	} {
		if got := howFar(tt.p); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.p, got, tt.want)
		}
	}
}

func TestTheLineOfAPullFitsTheTerminalAndIsCleared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		asked := 0
		done := show(&out, func() int { return 20 }, "pulling app", func(ctx context.Context) string {
			if asked++; asked == 1 {
				return "1 of 2"
			}
			<-ctx.Done() // a service that does not answer
			return ""
		})
		time.Sleep(time.Second)
		done()
		const want = "\r\x1b[Kpulling app: 1 of 2\r\x1b[K"
		if got := out.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
