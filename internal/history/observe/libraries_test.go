// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/runtime"
)

// PROPERTIES 19: the libraries of streams log through berth's log, and not to standard error, which
// may stall. A client that hangs up is not an error of berth's.
func TestTheLibrariesOfStreamsLogDebugMessages(t *testing.T) {
	for level, want := range map[slog.Level]bool{slog.LevelDebug: true, slog.LevelInfo: false} {
		var out bytes.Buffer
		h := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level})
		klog.SetLogger(logr.FromSlogHandler(asDebug{h}))
		runtime.HandleError(errors.New("the client hung up"))
		klog.ClearLogger()
		if got := strings.Contains(out.String(), "the client hung up"); got != want || strings.Contains(out.String(), "ERROR") {
			t.Errorf("at level %s: %q", level, out.String())
		}
	}
}
