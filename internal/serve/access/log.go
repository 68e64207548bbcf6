// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/event"
	"berth/internal/serve/stream"
)

// Config configures the record of accesses.
type Config struct {
	// File is the path of the file; empty for none.
	File string
	// Open lets an access in that cannot be written to the file.
	Open bool
	// Sessions is a directory for recordings of terminals; empty for none.
	Sessions string
	// Note takes an event for the timeline. It must not block.
	Note func(id string, e event.Event)
	// Probed is called for each probe. It must not block, and may be nil.
	Probed func()
	Log    *slog.Logger
}

const (
	// maxArgs is how much of a command is recorded, in bytes.
	maxArgs = 4096
	// beginTimeout is how long an access waits for the disk.
	beginTimeout = 2 * time.Second
)

// Log implements stream.AccessLog. Its methods may be called from any goroutine.
type Log struct {
	cfg    Config
	file   *file // nil: none
	probes probes
}

// New makes a log. The caller runs it.
func New(cfg Config) *Log {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	l := &Log{cfg: cfg, probes: probes{of: map[string]*commands{}}}
	if cfg.File != "" {
		l.file = newFile(cfg.File, cfg.Log)
	}
	return l
}

// Run writes to the file until ctx ends, and then the rest, within a second. It returns nil.
func (l *Log) Run(ctx context.Context) error {
	if l.file == nil {
		<-ctx.Done()
		return nil
	}
	return l.file.run(ctx)
}

// visit is an access that goes on.
type visit struct {
	log     *Log
	id      string
	session string
	record  Record
	began   time.Time
	cast    *cast // nil: nothing is kept
	probe   bool  // it is in the file alone
}

// probe is an access that is counted alone.
type probe struct{}

func (probe) Wrote([]byte)        {}
func (probe) Resized(_, _ uint16) {}

// End implements stream.Visit. There is nothing to record.
func (probe) End(int32, error, int64, int64) {}

// Begin implements stream.AccessLog.
func (l *Log) Begin(acc stream.Access) (stream.Visit, error) {
	t := acc.Target
	// A hook has no timeout, and neither has a command by way of the kubelet's /run.
	isProbe := acc.What == "exec-sync" && acc.By.IsKubelet() && acc.Timeout > 0
	if isProbe {
		if l.cfg.Probed != nil {
			l.cfg.Probed()
		}
		if l.file == nil || !l.probes.isFirst(t, acc.Args) {
			return probe{}, nil
		}
	}
	v := &visit{
		log:     l,
		id:      t.ID,
		session: rand.Text()[:12],
		began:   time.Now(),
		probe:   isProbe,
	}
	args := bounded(acc.Args)
	v.record = Record{
		Session:   v.session,
		Access:    acc.What,
		ID:        t.ID,
		Namespace: t.PodConfig.GetMetadata().GetNamespace(),
		Pod:       t.PodConfig.GetMetadata().GetName(),
		Container: t.Config.GetMetadata().GetName(),
		By:        acc.By,
	}
	if l.file != nil {
		first := v.record
		first.What, first.At, first.Args, first.Port, first.Terminal = Began, v.began, args, acc.Port, acc.Terminal
		var err error
		if l.cfg.Open || isProbe { // a probe does not wait for a disk
			l.file.writeLater(first)
		} else {
			err = l.file.write(first)
		}
		if err != nil {
			err = fmt.Errorf("%s is refused, since it cannot be recorded in %s (audit.on_error): %w: %w", acc.What, l.cfg.File, err, errdefs.ErrUnavailable)
			l.cfg.Note(t.ID, event.AccessRefused{By: acc.By, Access: acc.What, Args: args, Err: err.Error()})
			return nil, err
		}
	}
	if isProbe {
		return v, nil
	}
	l.cfg.Note(t.ID, event.AccessBegan{
		By:       acc.By,
		Session:  v.session,
		Access:   acc.What,
		Args:     args,
		Port:     acc.Port,
		Terminal: acc.Terminal,
	})
	if acc.Terminal && l.cfg.Sessions != "" {
		v.cast = l.openCast(v)
	}
	return v, nil
}

// Wrote implements stream.Visit.
func (v *visit) Wrote(b []byte) {
	if v.cast != nil {
		v.cast.wrote(b)
	}
}

// Resized implements stream.Visit.
func (v *visit) Resized(width, height uint16) {
	if v.cast != nil {
		v.cast.resized(width, height)
	}
}

// End implements stream.Visit.
func (v *visit) End(code int32, err error, in, out int64) {
	took, why := time.Since(v.began), ""
	var ended *int32
	switch {
	case err != nil: // a command that never ran, or was not seen to end
		why = err.Error()
	case strings.HasPrefix(v.record.Access, "exec"):
		ended = &code
	}
	if !v.probe {
		v.log.cfg.Note(v.id, event.AccessEnded{
			Session: v.session,
			Access:  v.record.Access,
			Code:    ended,
			Took:    took,
			In:      in,
			Out:     out,
			Err:     why,
		})
	}
	if v.cast != nil {
		v.cast.close()
	}
	if v.log.file == nil {
		return
	}
	last := v.record
	last.What, last.At, last.Code, last.Err, last.In, last.Out = Ended, time.Now(), ended, why, in, out
	v.log.file.writeLater(last)
}

// bounded cuts off arguments that are too long.
func bounded(args []string) []string {
	left := maxArgs
	out := make([]string, 0, min(len(args), 64))
	for i, arg := range args {
		if len(arg) > left {
			arg = strings.ToValidUTF8(arg[:left], "") + "..."
		}
		left -= len(arg)
		out = append(out, arg)
		if left <= 0 && i < len(args)-1 {
			return append(out, fmt.Sprintf("... %d more", len(args)-1-i))
		}
	}
	return out
}
