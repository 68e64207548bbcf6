// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"log/slog"
	"time"
)

// AccessBegan reports that a client uses a container: it runs a command in it, is connected with
// its process, or with a port of its pod.
type AccessBegan struct {
	By       Client   `json:"by,omitzero"`
	Session  string   `json:"session"`
	Access   string   `json:"access"` // exec, exec-sync, attach, port-forward or checkpoint
	Args     []string `json:"args,omitempty"`
	Port     int32    `json:"port,omitempty"`
	Terminal bool     `json:"terminal,omitempty"`
}

func (e AccessBegan) line() Line {
	attrs := []slog.Attr{slog.String("access", e.Access), slog.String("session", e.Session)}
	if len(e.Args) > 0 {
		attrs = append(attrs, slog.String("command", fmt.Sprintf("%q", e.Args)))
	}
	if e.Port != 0 {
		attrs = append(attrs, slog.Int("port", int(e.Port)))
	}
	if e.Terminal {
		attrs = append(attrs, slog.Bool("terminal", true))
	}
	return info(Call, "access began", e.By.attrs(attrs...)...)
}

// AccessEnded reports the end of an access.
type AccessEnded struct {
	Session string        `json:"session"`
	Access  string        `json:"access"`
	Code    *int32        `json:"code,omitempty"` // of a command that has ended; nil for others
	Took    time.Duration `json:"took"`
	In      int64         `json:"in"`  // bytes from the client
	Out     int64         `json:"out"` // and to it
	Err     string        `json:"err,omitempty"`
}

func (e AccessEnded) line() Line {
	attrs := []slog.Attr{slog.String("access", e.Access), slog.String("session", e.Session)}
	if e.Code != nil {
		attrs = append(attrs, slog.Int("code", int(*e.Code)))
	}
	l := info(Call, "access ended", append(attrs,
		slog.Duration("took", e.Took),
		slog.Int64("in", e.In),
		slog.Int64("out", e.Out))...)
	l.Err = e.Err
	return l
}

// AccessRefused reports that an access was refused because it cannot be put on record.
type AccessRefused struct {
	By     Client   `json:"by,omitzero"`
	Access string   `json:"access"`
	Args   []string `json:"args,omitempty"`
	Err    string   `json:"err"`
}

func (e AccessRefused) line() Line {
	return warn(Berth, "access refused, it cannot be put on record", e.Err,
		e.By.attrs(slog.String("access", e.Access), slog.String("command", fmt.Sprintf("%q", e.Args)))...)
}
