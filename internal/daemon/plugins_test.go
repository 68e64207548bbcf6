// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// PROPERTIES 17 and 27: the first pods wait for the plug-ins that berth starts, and not for ever.
func TestAPluginThatHangsDoesNotKeepPodsFromBeingMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registered, hanging := make(chan struct{}), make(chan struct{})
		time.AfterFunc(time.Second, func() { close(registered) })
		ended, end := context.WithCancel(t.Context())
		end()
		for _, tt := range []struct {
			ctx     context.Context
			started chan struct{}
			want    time.Duration
			warned  int
		}{
			{t.Context(), registered, time.Second, 0},
			{t.Context(), hanging, pluginsTimeout, 1},
			{ended, hanging, 0, 0},
		} {
			var out bytes.Buffer
			began := time.Now()
			awaitPlugins(tt.ctx, tt.started, slog.New(slog.NewTextHandler(&out, nil)))
			if got := time.Since(began); got != tt.want || strings.Count(out.String(), "level=WARN") != tt.warned {
				t.Errorf("it waited %v, want %v, and warned: %s", got, tt.want, &out)
			}
		}
	})
}
