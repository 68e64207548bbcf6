// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"slices"
	"sync"
)

// Fields are what a record is about. Empty ones are not written.
type Fields struct {
	Event     string // the kind of an event
	Namespace string
	Pod       string
	UID       string // of the pod
	Container string
	ID        string // of the container or sandbox
}

type key struct{}

// With returns a context for a record with fields.
func With(ctx context.Context, f Fields) context.Context { return context.WithValue(ctx, key{}, f) }

// field is a field of the journal.
type field struct{ name, value string }

func (f Fields) list() (list []field) {
	for _, e := range []field{
		{"EVENT", f.Event},
		{"NAMESPACE", f.Namespace},
		{"POD", f.Pod},
		{"POD_UID", f.UID},
		{"CONTAINER", f.Container},
		{"ID", f.ID},
	} {
		if e.value != "" {
			list = append(list, e)
		}
	}
	return list
}

// attrs are the attributes of records that are fields, too.
var attrs = map[string]string{
	"reason":    "REASON",
	"code":      "CODE",
	"witness":   "WITNESS",
	"err":       "ERROR",
	"component": "COMPONENT",
}

// Handler returns what makes handlers for package asynclog: those that inner makes, whose text is the
// message of a record. What they write can be read by [Output.Write] alone.
func (o *Output) Handler(inner func(io.Writer) slog.Handler) func(io.Writer) slog.Handler {
	return func(w io.Writer) slog.Handler {
		h := &handler{shared: &shared{out: w, mark: o.mark}}
		h.inner = inner(&h.shared.text)
		return h
	}
}

// shared is what a handler has together with those that were derived from it.
type shared struct {
	out  io.Writer
	mark [markSize]byte

	mu   sync.Mutex
	text bytes.Buffer // of the record that is being formatted
}

type handler struct {
	shared *shared
	inner  slog.Handler
	fields []field // of the attributes that it was derived with
	group  bool    // it was derived for a group, whose attributes are not fields
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, l slog.Level) bool { return h.inner.Enabled(ctx, l) }

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(list []slog.Attr) slog.Handler {
	d := *h
	d.inner = h.inner.WithAttrs(list)
	d.fields = slices.Concat(h.fields, h.fieldsOf(list...))
	return &d
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	d := *h
	d.inner, d.group = h.inner.WithGroup(name), true
	return &d
}

func (h *handler) fieldsOf(list ...slog.Attr) (fields []field) {
	for _, a := range list {
		if name, ok := attrs[a.Key]; ok && !h.group {
			fields = append(fields, field{name, a.Value.String()})
		}
	}
	return fields
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	fields := []field{{"PRIORITY", priority(r.Level)}, {"SYSLOG_IDENTIFIER", "berth"}}
	if f, ok := ctx.Value(key{}).(Fields); ok {
		fields = append(fields, f.list()...)
	}
	fields = append(fields, h.fields...)
	r.Attrs(func(a slog.Attr) bool {
		fields = append(fields, h.fieldsOf(a)...)
		return true
	})
	s := h.shared
	s.mu.Lock()
	s.text.Reset()
	err := h.inner.Handle(ctx, r)
	text := bytes.Clone(s.text.Bytes())
	s.mu.Unlock()
	if err != nil {
		return err
	}
	_, err = s.out.Write(frame(s.mark, text, fields))
	return err
}

// priority is that of syslog.
func priority(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "3"
	case l >= slog.LevelWarn:
		return "4"
	case l >= slog.LevelInfo:
		return "6"
	}
	return "7"
}

const markSize = 16

// frame is a record on its way through package asynclog: a mark that no other text begins with, and
// then, each with its length before it, the text and the names and values of the fields.
func frame(mark [markSize]byte, text []byte, fields []field) []byte {
	b := append([]byte(nil), mark[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(fields)))
	b = appendText(b, string(text))
	for _, f := range fields {
		b = appendText(appendText(b, f.name), f.value)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...)
}

// unframe reads the first record of b, which begins with a mark, and returns how long it is; 0 if it
// is torn.
func unframe(b []byte) (text string, fields []field, length int) {
	rest := b[markSize:]
	number := func() (n int, ok bool) {
		if len(rest) < 4 {
			return 0, false
		}
		n, rest = int(binary.LittleEndian.Uint32(rest)), rest[4:]
		return n, true
	}
	word := func() (s string, ok bool) {
		n, ok := number()
		if !ok || n > len(rest) {
			return "", false
		}
		s, rest = string(rest[:n]), rest[n:]
		return s, true
	}
	count, ok := number()
	if !ok {
		return "", nil, 0
	}
	if text, ok = word(); !ok {
		return "", nil, 0
	}
	for range count {
		name, ok1 := word()
		value, ok2 := word()
		if !ok1 || !ok2 {
			return "", nil, 0
		}
		fields = append(fields, field{name, value})
	}
	return text, fields, len(b) - len(rest)
}
