// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/containerd/log"
)

// BridgeLog sends the log of containerd's libraries, server and client alike, to logger, under
// component=containerd, from info level on or from debug level if debug is set. It is for the whole
// process, and stays until it is called again, so that goroutines that outlive a Stop still have a
// log. Start calls it.
//
// It also takes from logrus the habit of ending the process on a fatal error.
func BridgeLog(logger *slog.Logger, debug bool) {
	bridge.logger.Store(logger.With("component", "containerd"))
	level := log.InfoLevel
	if debug {
		level = log.DebugLevel
	}
	log.L.Logger.SetLevel(level)
	bridge.install.Do(func() {
		log.L.Logger.SetOutput(io.Discard)
		log.L.Logger.SetFormatter(noText{})
		log.L.Logger.ExitFunc = func(int) {}
		log.L.Logger.AddHook(&bridge)
	})
}

var bridge logBridge

// logBridge is the logrus hook.
type logBridge struct {
	install sync.Once
	logger  atomic.Pointer[slog.Logger]
	// fatal, if set, is called with the error that would have ended the process.
	fatal atomic.Pointer[func(error)]
}

// routine are the beginnings of messages of containerd about each beginning and end of a shim, and
// about files that it looks for and that are not there. berth has events of its own for both.
var routine = []string{
	"connecting to shim ",
	"cleaning up dead shim",
	"shim disconnected",
	"cleaning up after shim disconnected",
	"warnings while cleaning up dead shim",
	"failed check for fsverity support",
}

func (*logBridge) Levels() []log.Level {
	return []log.Level{
		log.PanicLevel, log.FatalLevel, log.ErrorLevel, log.WarnLevel, log.InfoLevel, log.DebugLevel, log.TraceLevel,
	}
}

func (b *logBridge) Fire(e *log.Entry) error {
	if e.Level == log.FatalLevel {
		if fatal := b.fatal.Load(); fatal != nil {
			(*fatal)(fatalError(e))
		}
	}
	ctx := e.Context
	if ctx == nil {
		ctx = context.Background()
	}
	handler := b.logger.Load().Handler()
	level := slogLevel(e.Level)
	if slices.ContainsFunc(routine, func(s string) bool { return strings.HasPrefix(e.Message, s) }) {
		level = slog.LevelDebug
	}
	if !handler.Enabled(ctx, level) {
		return nil
	}
	r := slog.NewRecord(e.Time, level, e.Message, 0)
	for _, key := range slices.Sorted(maps.Keys(e.Data)) {
		r.AddAttrs(slog.Any(key, e.Data[key]))
	}
	return handler.Handle(ctx, r)
}

func slogLevel(l log.Level) slog.Level {
	switch l {
	case log.TraceLevel:
		return slog.LevelDebug - 4
	case log.DebugLevel:
		return slog.LevelDebug
	case log.InfoLevel:
		return slog.LevelInfo
	case log.WarnLevel:
		return slog.LevelWarn
	default:
		return slog.LevelError
	}
}

func fatalError(e *log.Entry) error {
	if err, ok := e.Data["error"].(error); ok {
		return fmt.Errorf("%s: %w", e.Message, err)
	}
	return errors.New(e.Message)
}

// noText keeps logrus from formatting lines that are discarded.
type noText struct{}

func (noText) Format(*log.Entry) ([]byte, error) { return nil, nil }
